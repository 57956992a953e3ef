"""Copies that fail: what becomes of the chats they concern, and what is counted (behaviour P17)."""

from collections.abc import Callable

import pytest

from kvalet.core.changes import ChangeKind
from kvalet.core.plan import PAGE_CELLS, Direction, SlotId, Tier, Transfer, pages_for
from kvalet.core.scheduler import RESTORE_FAILED, RESTORE_PATIENCE_S
from kvalet.core.sequence import Sequence, Status
from kvalet.engine.fake import FakeEngine
from tests.builders import Run, alone, alone_endless, make_prompt, make_scheduler, make_seq

SLOT = SlotId(0)
LONG_S = 1e6
N_CTX = 256
STEP_S = 0.02


class Timed:
    """A run at 50 steps a second."""

    def __init__(self, run: Run, engine: FakeEngine) -> None:
        self.run = run
        self.scheduler = run.scheduler
        self.engine = engine
        self.now = 0.0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.now += STEP_S
            self.run.step(self.now)

    def until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(5000):
            if is_so():
                return
            self.steps(1)
        raise AssertionError("it did not come about")


def break_copies(engine: FakeEngine, direction: Direction, times: int | None = None) -> None:
    """The next `times` of sequences on their way; None: all of them."""
    left = [10**9 if times is None else times]

    def fault(transfer: Transfer) -> str | None:
        if transfer.direction is not direction or transfer.seq_id is None or not left[0]:
            return None
        left[0] -= 1
        return "injected"

    engine.faults.transfer = fault


def endless(*, host: int | None = None, disk: int = 0, cache: int = 0) -> Timed:
    scheduler = make_scheduler(
        12,
        3,
        n_ctx=N_CTX,
        context_shift=True,
        rotate_s=1e9,
        host_budget_pages=host,
        disk_budget_pages=disk,
        cache_budget_pages=cache,
    )
    engine = FakeEngine(12, transfer_steps=1)
    return Timed(Run(scheduler, engine), engine)


def shifted(timed: Timed, seq: Sequence) -> Sequence:
    """One that has no way back but by its pages."""
    timed.scheduler.add(seq)
    timed.until(lambda: seq.num_dropped > 0)
    return seq


def parked(timed: Timed, slot: SlotId = SLOT) -> None:
    timed.scheduler.park(slot, 500.0)
    timed.steps(5)


def test_pages_found_by_name_are_computed_too_when_they_cannot_be_copied() -> None:
    scheduler = make_scheduler(8, 3, n_ctx=N_CTX, cache_budget_pages=64)
    engine = FakeEngine(8, transfer_steps=1)
    break_copies(engine, Direction.IN)
    seqs = [make_seq(seq_id, 60, 120) for seq_id in (1, 2)]
    for seq in seqs:
        scheduler.add(seq)
    Run(scheduler, engine).until_idle(1000)
    assert [seq.tokens for seq in seqs] == [alone(seq, N_CTX) for seq in seqs]
    assert scheduler.counters.n_preempt_fail == 3
    assert scheduler.counters.n_recompute_tokens > 0


def test_a_prompt_whose_copy_failed_was_not_cached() -> None:
    scheduler = make_scheduler(16, 2, cache_budget_pages=64)
    engine = FakeEngine(16, transfer_steps=1)
    runner = Run(scheduler, engine)
    prompt = make_prompt(133, salt=7)
    scheduler.add(make_seq(1, prompt=prompt, max_new_tokens=6, id_slot=0))
    runner.until_idle()
    scheduler.park(SLOT, LONG_S)
    for _ in range(4):
        runner.step(0.0)
    assert (scheduler.pool.num_cached, scheduler.store.num_held) == (0, 4)
    break_copies(engine, Direction.IN)
    seq = make_seq(5, prompt=prompt, max_new_tokens=6)
    scheduler.add(seq)
    while seq.status is not Status.ENDED:
        runner.step(0.0)
    grants = [grant for plan in runner.plans for grant in plan.grants if grant.seq_id == 5]
    assert sum(len(grant.tokens) for grant in grants) == len(prompt) + 5
    assert seq.num_cached == 0


def test_a_park_after_one_that_failed_is_kept_as_long_as_any() -> None:
    timed = endless()
    seq = shifted(timed, make_seq(1, 100, 4000))
    break_copies(timed.engine, Direction.OUT, times=1)
    parked(timed)
    assert (seq.status, timed.scheduler.counters.n_preempt_fail) == (Status.DECODE, 1)
    parked(timed)
    timed.now += RESTORE_PATIENCE_S + 1
    timed.steps(3)
    assert seq.status is Status.PREEMPTED
    timed.scheduler.resume(SLOT)
    timed.until(lambda: seq.status is Status.DECODE)


def test_patience_with_a_restore_begins_when_it_first_fails() -> None:
    timed = endless()
    seq = shifted(timed, make_seq(1, 100, 4000))
    parked(timed)
    other = make_seq(2, 200, 1000, priority=9)
    timed.scheduler.add(other)
    timed.steps(20)
    timed.scheduler.resume(SLOT)
    timed.steps(20)
    assert (seq.status, seq.is_held) == (Status.PREEMPTED, False)
    timed.now += RESTORE_PATIENCE_S + 5
    break_copies(timed.engine, Direction.IN, times=2)
    timed.scheduler.cancel(other.seq_id)
    timed.until(lambda: seq.status is Status.DECODE)
    assert timed.scheduler.counters.n_preempt_fail == 2


@pytest.mark.parametrize("times", [1, 2])
def test_patience_with_a_restore_starts_anew_once_it_is_back(times: int) -> None:
    """One that fails for good ends after as long as one that never failed before."""
    timed = endless()
    seq = shifted(timed, make_seq(1, 100, 4000))
    for _ in range(times - 1):
        break_copies(timed.engine, Direction.IN, times=1)
        parked(timed)
        timed.scheduler.resume(SLOT)
        timed.until(lambda: seq.status is Status.DECODE)
        timed.now += RESTORE_PATIENCE_S + 1
    parked(timed)
    break_copies(timed.engine, Direction.IN)
    timed.scheduler.resume(SLOT)
    timed.steps(5)
    timed.now += RESTORE_PATIENCE_S - 10
    timed.steps(2)
    assert timed.run.of(ChangeKind.FAILED) == []
    timed.now += 11
    timed.steps(3)
    assert timed.run.of(ChangeKind.FAILED) == [1]
    assert timed.run.changes[-1].message == RESTORE_FAILED


def test_a_full_disk_parks_shifted_chats_in_memory() -> None:
    timed = endless(host=1, disk=100)

    def full_disk(transfer: Transfer) -> str | None:
        is_out = transfer.direction is Direction.OUT
        on_disk = any(host.tier is Tier.DISK for _, host in transfer.moves)
        return "No space left on device" if is_out and on_disk else None

    timed.engine.faults.transfer = full_disk
    seqs = [make_seq(1, 100, 700), make_seq(2, 90, 900)]
    for seq in seqs:
        timed.scheduler.add(seq)
    timed.until(lambda: not timed.scheduler.has_work)
    assert [seq.tokens[-50:] for seq in seqs] == [alone_endless(seq, N_CTX)[-50:] for seq in seqs]
    parks = [change.parked for change in timed.run.changes if change.parked is not None]
    assert timed.scheduler.counters.n_preempt_fail >= 1
    assert any("over the budget: it cannot be replayed" in park.why for park in parks)
    assert timed.run.of(ChangeKind.FAILED) == []


def test_a_failed_copy_out_leaves_nothing_pinned_and_is_not_counted() -> None:
    timed = endless()
    seq = make_seq(1, 100, 4000)
    timed.scheduler.add(seq)
    timed.steps(10)
    break_copies(timed.engine, Direction.OUT)
    parked(timed)
    assert (seq.status, timed.scheduler.num_in_host(seq)) == (Status.PREEMPTED, 0)
    assert timed.scheduler.store.num_pinned == timed.scheduler.store.num_held == 0
    assert timed.scheduler.counters.pages_out == 0


def test_copies_are_counted_when_they_have_landed() -> None:
    timed = endless()
    seq = make_seq(1, 100, 4000)
    timed.scheduler.add(seq)
    timed.steps(10)
    timed.scheduler.park(SLOT, LONG_S)
    timed.steps(1)
    assert timed.run.plans[-1].transfers
    assert timed.scheduler.counters.pages_out == 0
    timed.steps(2)
    assert timed.scheduler.counters.pages_out == pages_for(seq.num_computed)
    timed.scheduler.resume(SLOT)
    timed.steps(1)
    assert timed.scheduler.counters.pages_in == 0
    timed.steps(2)
    assert timed.scheduler.counters.pages_in == 1  # the others are still in the pool


def test_what_a_resumed_chat_has_on_the_host_is_still_told() -> None:
    timed = endless(cache=16)
    seq = make_seq(1, 100, 4000)
    timed.scheduler.add(seq)
    timed.steps(10)
    parked(timed)
    timed.scheduler.resume(SLOT)
    timed.until(lambda: seq.status is Status.DECODE)
    assert timed.scheduler.num_in_host(seq) == 3  # whole pages


def test_a_step_in_which_many_wait_for_a_copy_is_one() -> None:
    scheduler = make_scheduler(9, 3, n_ctx=N_CTX, lookahead_steps=1)
    runner = Run(scheduler, FakeEngine(9, transfer_steps=5))
    for seq_id in (1, 2, 3):
        scheduler.add(make_seq(seq_id, 3 * PAGE_CELLS - 10, 60))
    while not scheduler.counters.n_waits_for_copy:
        runner.step()
    statuses = [seq.status for seq in scheduler.slots if seq is not None]
    assert statuses.count(Status.PREEMPTING) == 1
    assert not runner.plans[-1].grants  # both of the others wait
    assert scheduler.counters.n_waits_for_copy == 1


def test_what_a_chat_that_ends_on_its_way_out_lets_go_of_fits_the_cache() -> None:
    scheduler = make_scheduler(8, 3, n_ctx=N_CTX, cache_budget_pages=4)
    runner = Run(scheduler, FakeEngine(8, transfer_steps=4))
    scheduler.add(make_seq(9, 130, 3, id_slot=0))
    runner.until_idle()
    scheduler.park(SLOT, 1.0)
    for _ in range(12):
        runner.step()
    assert scheduler.store.num_cached == 4
    seqs = [make_seq(1, 60, 150), make_seq(2, 100, 150)]
    for seq in seqs:
        scheduler.add(seq)
    while not (leaving := [seq for seq in seqs if seq.status is Status.PREEMPTING]):
        runner.step()
    assert scheduler.store.num_pinned > 0
    scheduler.cancel(leaving[0].seq_id)
    scheduler.check()
    runner.until_idle()
    assert scheduler.store.num_cached <= 4
