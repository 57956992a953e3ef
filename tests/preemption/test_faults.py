"""What goes wrong concerns whom it concerns (behaviour P16, P17): everybody else is as alone, and
at the end nothing is held, which `Stage.finish` checks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvalet.core.plan import Direction, Grant, SeqId, StepPlan, Transfer
from kvalet.core.sequence import Status
from kvalet.errors import EngineError
from kvalet.runtime.messages import Failed
from tests.builders import SchedulerOptions
from tests.preemption.stage import Stage, chat
from tests.runtime.clients import Client

pytestmark = pytest.mark.native


def three_pressed() -> list[Client]:
    return [chat(salt, 40 + 9 * salt, 120) for salt in (1, 2, 3)]


def first(count: int, direction: Direction) -> Callable[[Transfer], str | None]:
    """The first `count` copies that way fail."""
    seen: list[Transfer] = []

    def fault(transfer: Transfer) -> str | None:
        if transfer.direction is direction and len(seen) < count:
            seen.append(transfer)
            return "injected"
        return None

    return fault


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_restores_that_fail_are_tried_three_times_then_replayed(tiny: Path, count: int) -> None:
    on = Stage(tiny, options={"preempt_every": 40})
    on.engine.faults.transfer = first(count, Direction.IN)
    on.finish(chat(1, 100, 60))
    on.check_as_alone()
    assert on.count("n_preempt") == 1
    assert on.count("n_preempt_fail") == min(count, 3)
    assert on.count("n_recompute_tokens") == (139 if count >= 3 else 0)


def test_a_copy_out_that_cannot_be_made_falls_through_to_a_replay(tiny: Path) -> None:
    on = Stage(tiny, 9)
    on.engine.faults.transfer = first(1, Direction.OUT)
    on.finish(*three_pressed())
    on.check_as_alone()
    assert on.count("n_preempt_fail") == 1
    assert on.count("n_preempt") == on.count("n_resume") >= 1
    assert on.count("n_recompute_tokens") > 0


@pytest.mark.parametrize("lasting_steps", [30, 10_000])
def test_a_shifted_state_that_cannot_be_restored_ends_after_a_minute(
    tiny: Path, lasting_steps: int
) -> None:
    """If it is to be had again within that time, nothing has happened."""
    options: SchedulerOptions = {"context_shift": True, "preempt_every": 300}
    on = Stage(tiny, 8, options=options)

    def fault(transfer: Transfer) -> str | None:
        is_broken = len(on.engine.plans) < 305 + lasting_steps
        return "injected" if transfer.direction is Direction.IN and is_broken else None

    on.engine.faults.transfer = fault
    client = chat(1, 50, 400)
    on.finish(client)
    assert on.count("n_preempt_fail") > 3
    if lasting_steps > 60:
        assert str(client.error) == "failed to restore the preempted sequence"
        assert len(on.engine.plans) == pytest.approx(301 + 60, abs=5)
    else:
        on.check_as_alone()


def test_a_computation_that_fails_ends_its_own_sequence(tiny: Path) -> None:
    clients = three_pressed()
    on = Stage(tiny, 9)
    on.engine.faults.compute = lambda grant: (
        "no such number" if grant.seq_id == on.ids[1] and grant.start > 90 else None
    )
    on.finish(*clients)
    assert "no such number" in str(clients[1].error)
    on.check_as_alone(clients[0], clients[2])
    assert on.count("n_preempt") >= 1
    assert on.count("preempt_bytes_in") > 0


def test_a_step_that_fails_ends_who_took_part_and_spares_the_parked(tiny: Path) -> None:
    clients = three_pressed()
    on = Stage(tiny, 9)
    broken: list[set[SeqId]] = []

    def break_once(plan: StepPlan) -> Exception | None:
        is_somebody_parked = any(
            seq.status is Status.PREEMPTED for seq in on.scheduler.slots if seq is not None
        )
        if is_somebody_parked and plan.grants and not broken:
            broken.append({grant.seq_id for grant in plan.grants})
            return EngineError("the device stumbled")
        return None

    on.engine.faults.execute = break_once
    on.finish(*clients)
    ended = {on.id_of(c) for c in clients if isinstance(c.events[-1], Failed)}
    assert broken == [ended]
    spared = [client for client in clients if on.id_of(client) not in ended]
    assert spared
    on.check_as_alone(*spared)
    assert on.count("preempt_bytes_in") > 0


def cancel_in(on: Stage, client: Client, status: Status) -> None:
    """Cancel `client` at the first step that finds it in `status`."""

    def watch(plan: StepPlan) -> None:
        seq = on.sequence(client)
        found = Status.QUEUED if seq is None else seq.status
        if found is status and client not in on.cancelled:
            on.cancel(client)
            on.noted.append(plan.step)

    on.each = watch


@pytest.mark.parametrize(
    "status",
    [
        *(Status.QUEUED, Status.STARTED, Status.PREFILL, Status.DECODE),
        *(Status.PREEMPTING, Status.PREEMPTED, Status.RESTORING, Status.REPLAY),
    ],
)
def test_cancel_in_every_state_touches_nobody_else(tiny: Path, status: Status) -> None:
    """Between two steps, so the scheduler is told as soon as the step in which it is in that state
    is over."""
    one_slot = status is Status.QUEUED
    budget = 0 if status is Status.REPLAY else None
    others = [chat(1, 200, 150), chat(2, 60, 150)]
    cancelled = chat(3, 300 if status is Status.STARTED else 150, 200)
    options: SchedulerOptions = {"batch_size": 64, "decode_chunk": 32, "host_budget_pages": budget}
    on = Stage(tiny, 14, num_slots=1 if one_slot else 4, options=options)
    cancel_in(on, cancelled, status)
    on.finish(*others, cancelled)
    assert len(on.noted) == 1
    assert not cancelled.ended.is_set()
    on.check_as_alone(*others)


def test_mass_abort_leaves_nothing(tiny: Path) -> None:
    """Everybody leaves at once, some parked, some running, some in the queue."""
    on = Stage(tiny, 10, options={"preempt_every": 7})
    clients = [chat(salt, 40 + 9 * salt, 200) for salt in range(1, 9)]
    on.at = {60: lambda: on.cancel(*clients)}
    on.finish(*clients)
    assert on.count("n_preempt") > 4
    assert not any(client.ended.is_set() for client in clients)


def test_a_grant_of_a_cancelled_chat_is_its_last(tiny: Path) -> None:
    on, client, other = Stage(tiny), chat(1, 40, 200), chat(2, 40, 100)
    on.at = {30: lambda: on.cancel(client)}
    on.finish(client, other)

    def steps_of(who: Client) -> list[int]:
        return [p.step for p in on.engine.plans if any(_is_for(g, who) for g in p.grants)]

    def _is_for(grant: Grant, who: Client) -> bool:
        return grant.seq_id == on.id_of(who)

    assert max(steps_of(client)) == 30
    on.check_as_alone(other)
