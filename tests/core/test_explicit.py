"""Parking and resuming on request, and the measured prefill chunk (behaviour P14, S6)."""

import pytest

from kvalet.core.changes import ChangeKind
from kvalet.core.pacing import FIRST, SMALLEST, Pacing
from kvalet.core.plan import PAGE_CELLS, Grant, PageId, Phase, SeqId, SlotId, StepPlan
from kvalet.core.sequence import Status
from kvalet.engine.fake import FakeEngine
from kvalet.errors import Conflict
from tests.builders import Run, alone, make_prompt, make_scheduler, make_seq

SLOT = SlotId(0)


def running() -> Run:
    scheduler = make_scheduler(num_pages=16)
    runner = Run(scheduler, FakeEngine(16))
    for seq_id in (1, 2):
        scheduler.add(make_seq(seq_id, 60, 60))
    for _ in range(5):
        runner.step()
    return runner


def test_a_chat_parked_on_request_stays_out_until_resumed() -> None:
    runner = running()
    seq = runner.scheduler.slots[0]
    assert seq is not None
    runner.scheduler.park(SLOT, timeout_s=1000)
    for _ in range(10):
        runner.step()
    assert seq.status is Status.PREEMPTED
    runner.scheduler.resume(SLOT)
    runner.until_idle()
    assert (seq.num_preempts, seq.tokens) == (1, alone(seq))
    assert runner.of(ChangeKind.PREEMPTED) == runner.of(ChangeKind.RESUMED) == [1]


def test_a_parked_chat_comes_back_when_its_time_is_over() -> None:
    runner = running()
    seq = runner.scheduler.slots[0]
    assert seq is not None
    runner.scheduler.park(SLOT, timeout_s=20)
    runner.until_idle(max_steps=200)
    assert seq.tokens == alone(seq)


def test_other_states_conflict() -> None:
    runner = running()
    with pytest.raises(Conflict, match="slot 0 cannot be resumed: it is decode"):
        runner.scheduler.resume(SLOT)
    runner.scheduler.park(SLOT, 100)
    with pytest.raises(Conflict, match="slot 0 cannot be parked"):
        runner.scheduler.park(SLOT, 100)
    with pytest.raises(Conflict, match="slot 3 is idle and has nothing to park"):
        runner.scheduler.park(SlotId(3), 100)
    with pytest.raises(Conflict, match="slot 3 is idle and nothing of it is parked"):
        runner.scheduler.resume(SlotId(3))


def idle_after_a_chat() -> Run:
    scheduler = make_scheduler(num_pages=16, num_slots=1)
    runner = Run(scheduler, FakeEngine(16))
    scheduler.add(make_seq(1, 100, 40))
    return runner.until_idle()


def test_an_idle_slot_s_pages_move_to_the_store_and_the_next_request_takes_them() -> None:
    runner = idle_after_a_chat()
    scheduler = runner.scheduler
    scheduler.park(SLOT, 1000)
    runner.until_idle()
    assert (scheduler.pool.num_cached, scheduler.store.num_held) == (0, 4)
    turn = make_seq(2, prompt=(*make_prompt(100, 1), 5, 5), max_new_tokens=20)
    scheduler.add(turn)
    runner.until_idle()
    assert turn.num_cached == 3 * PAGE_CELLS
    assert turn.tokens == alone(turn)
    scheduler.plan(0.0)
    assert scheduler.store.num_held == 0


def test_an_idle_slot_comes_back_into_the_pool_on_resume() -> None:
    runner = idle_after_a_chat()
    scheduler = runner.scheduler
    scheduler.park(SLOT, 1000)
    runner.until_idle()
    scheduler.resume(SLOT)
    runner.until_idle()
    assert (scheduler.pool.num_cached, scheduler.store.num_held) == (4, 0)


def test_what_an_idle_slot_left_is_let_go_when_its_time_is_over() -> None:
    runner = idle_after_a_chat()
    runner.scheduler.park(SLOT, 10)
    runner.until_idle()
    runner.scheduler.plan(1e9)
    assert runner.scheduler.store.num_held == 0


def test_an_idle_park_that_fails_loses_nothing_that_is_still_in_the_pool() -> None:
    runner = idle_after_a_chat()
    scheduler = runner.scheduler
    assert isinstance(runner.engine, FakeEngine)
    runner.engine.faults.transfer = lambda transfer: "no memory"
    scheduler.park(SLOT, 1000)
    runner.until_idle()
    assert scheduler.store.num_held == 0
    assert scheduler.pool.num_cached > 0


def plan_of(num_decoding: int, num_filled: int) -> StepPlan:
    pages = (PageId(0),)
    decoders = [Grant(SeqId(i), Phase.DECODE, 5, (1,), pages) for i in range(num_decoding)]
    filler = [Grant(SeqId(99), Phase.PREFILL, 0, (1,) * num_filled, pages)] if num_filled else []
    return StepPlan(1, grants=(*decoders, *filler))


def test_the_chunk_keeps_a_mixed_step_within_the_stretch() -> None:
    pacing = Pacing(stretch=2.0)
    assert pacing.chunk() == FIRST
    pacing.observe(plan_of(4, 0), 0.030)
    pacing.observe(plan_of(4, 64), 0.030 + 64 * 0.001)
    mixed_s = 0.030 + pacing.chunk() * 0.001
    assert 0.030 * 1.6 < mixed_s <= 0.030 * 2.0


def test_the_chunk_never_falls_below_what_reading_the_weights_is_worth() -> None:
    pacing = Pacing(stretch=1.0)
    pacing.observe(plan_of(1, 0), 0.010)
    pacing.observe(plan_of(1, 64), 1.0)
    assert pacing.chunk() == SMALLEST
