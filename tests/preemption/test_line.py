"""The line: what waits at its head is neither passed nor forgotten (behaviour S7, P8, P9)."""

from pathlib import Path

import pytest

from kvalet.core.plan import StepPlan
from kvalet.core.sequence import Status
from kvalet.runtime.messages import Preempted
from tests.preemption.stage import Stage, chat
from tests.runtime.clients import Client

pytestmark = pytest.mark.native

NUM_SMALL = 30


def test_a_stream_of_small_requests_does_not_hold_off_a_parked_head(tiny: Path) -> None:
    """Two small ones want in at any time. Once the big chat is parked, only those that are in the
    pool already go on; those that come later stay behind it."""
    leader, parked = chat(1, 100, 180), chat(2, 90, 200)
    on = Stage(tiny, 12)
    passed: list[Client] = []
    small: list[Client] = []

    def next_small() -> None:
        if len(small) < NUM_SMALL:
            client = chat(10 + len(small), 20, 12)
            client.each = lambda events: note(client)
            small.append(client)
            on.submit(client)

    def note(who: Client) -> None:
        seq = on.sequence(parked)
        is_away = seq is not None and seq.status is Status.PREEMPTED
        began = len(who.calls) == 1 and not who.count(Preempted)
        if is_away and began and on.id_of(who) > arrived_at_the_park[0]:
            passed.append(who)
        if who.ended.is_set():
            next_small()

    arrived_at_the_park: list[int] = []

    def watch(plan: StepPlan) -> None:
        if plan.step in (2, 3):
            next_small()
        seq = on.sequence(parked)
        if seq is not None and seq.status is Status.PREEMPTED and not arrived_at_the_park:
            arrived_at_the_park.append(max(on.ids))

    on.each = watch
    on.finish(leader, parked)
    on.check_as_alone()
    assert len(small) == NUM_SMALL
    assert arrived_at_the_park
    assert passed == []
    on.check_pressed(swaps=True, replays=False)
    timings = parked.finished.timings
    assert timings.n_preempt >= 1
    num_steps = len(on.engine.plans)
    assert 0 < timings.parked_ms / 1e3 <= num_steps / 2


def test_a_head_that_can_never_fit_ends_and_the_line_goes_on(tiny: Path) -> None:
    """Impossible where every prompt fits the pool (behaviour S5); here n_ctx is larger than it."""
    impossible, behind = chat(1, 300, 20), chat(2, 40, 20)
    on = Stage(tiny, 8, options={"n_ctx": 1024})
    on.finish(impossible, behind)
    assert str(impossible.error) == "Context size has been exceeded."
    on.check_as_alone(behind)


def test_eight_uneven_chats_through_four_slots(tiny: Path) -> None:
    """Under `head` nobody is away for more than a third of the time that all of them take."""
    sizes = (240, 60, 200, 120, 30, 220, 90, 160)
    chats = [chat(salt, 60, size) for salt, size in enumerate(sizes, 1)]
    on = Stage(tiny, 16)
    longest = Longest(on)
    on.each = longest.watch
    on.finish(*chats)
    on.check_as_alone()
    on.check_pressed(swaps=True, replays=False)
    assert max(longest.steps.values()) <= len(on.engine.plans) / 3


class Longest:
    """Steps of the longest interval that each chat was parked for."""

    def __init__(self, on: Stage) -> None:
        self.steps: dict[int, int] = {}
        self._on = on
        self._current: dict[int, int] = {}

    def watch(self, plan: StepPlan) -> None:
        for seq in self._on.scheduler.slots:
            if seq is None:
                continue
            is_away = seq.status in (Status.PREEMPTED, Status.PREEMPTING)
            self._current[seq.seq_id] = self._current.get(seq.seq_id, 0) + 1 if is_away else 0
            self.steps[seq.seq_id] = max(self.steps.get(seq.seq_id, 0), self._current[seq.seq_id])
