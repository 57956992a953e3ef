"""Triggers, the line, rotation, shifts, life without preemption (behaviour P4 to P10, C1)."""

from typing import Any

import pytest

from kvalet.core.changes import ChangeKind
from kvalet.core.plan import PAGE_CELLS, Direction, SeqId, Transfer, pages_for
from kvalet.core.policy import LINE_ORDERS
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import Sequence, Status
from kvalet.engine.fake import FakeEngine
from tests.builders import Run, alone, alone_endless, make_prompt, make_scheduler, make_seq, run


def generated_by(done: Run, seq: Sequence) -> list[int]:
    drawn = (outcome.sampled.get(seq.seq_id, ()) for outcome in done.outcomes)
    return [sampled.token for one_step in drawn for sampled in one_step]


def test_the_watermark_parks_the_youngest_before_the_pool_is_full() -> None:
    seqs = [make_seq(i, 60, 200) for i in (1, 2, 3)]
    done = run(seqs, make_scheduler(num_pages=16, trigger="watermark"))
    assert done.scheduler.counters.n_preempt >= 1
    assert seqs[0].num_preempts == 0
    first_parked = done.of(ChangeKind.PREEMPTED)[0]
    assert first_parked == 3
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_a_lone_chat_may_fill_the_pool_under_the_watermark() -> None:
    seq = make_seq(1, 40, None)
    done = run([seq], make_scheduler(num_pages=16, trigger="watermark"))
    assert (seq.num_preempts, done.peak_pages) == (0, 16)


def waiting_behind(order: str, *, makes_way: bool = False) -> tuple[Run, Sequence, Sequence]:
    """A resident, a head too large to enter beside it, and a small request behind."""
    scheduler = make_scheduler(num_pages=16, entry_order=order)
    runner = Run(scheduler, FakeEngine(16))
    scheduler.add(make_seq(1, 300, 150))
    runner.step()
    head, small = make_seq(2, 250, 5), make_seq(3, 10, 5)
    small.makes_way = makes_way
    scheduler.add(head)
    scheduler.add(small)
    runner.step()
    return runner, head, small


@pytest.mark.parametrize("order", ["head", "parked"])
def test_nobody_passes_the_first_in_line(order: str) -> None:
    _, head, small = waiting_behind(order)
    assert (head.status, small.status) == (Status.STARTED, Status.STARTED)


def test_pass_lets_small_ones_by() -> None:
    runner, head, small = waiting_behind("pass")
    assert head.status is Status.STARTED
    assert small.status in (Status.PREFILL, Status.DECODE)
    runner.until_idle()
    assert runner.num_finished == 3


@pytest.mark.parametrize("order", ["head", "parked"])
def test_a_new_one_enters_before_or_behind_who_was_parked_meanwhile(order: str) -> None:
    """A leader, one that is parked beside it, and one too large to come in that waits since
    before that park."""
    scheduler = make_scheduler(num_pages=16, entry_order=order)
    runner = Run(scheduler, FakeEngine(16))
    parked, new = make_seq(2, 190, 150), make_seq(3, 330, 5)
    for seq in (make_seq(1, 200, 150), parked, new):
        scheduler.add(seq)
    while not parked.num_preempts:
        runner.step()
    while not (parked.is_resident or new.is_resident):
        runner.step()
    assert (parked.is_resident, new.is_resident) == (order == "parked", order == "head")
    runner.until_idle()
    assert runner.num_finished == 3


def test_who_waits_before_its_first_token_is_told_and_it_is_no_park() -> None:
    runner, head, small = waiting_behind("head")
    assert runner.of(ChangeKind.WAITING) == [2, 3]
    runner.until_idle()
    assert runner.of(ChangeKind.PREEMPTED) == []
    assert runner.of(ChangeKind.RESUMED) == [2, 3]
    assert runner.scheduler.counters.n_resume == head.num_preempts == small.num_preempts == 0


def test_waiting_begins_with_the_first_step_that_sees_it() -> None:
    scheduler = make_scheduler()
    scheduler.plan(5.0)
    seq = make_seq(1)
    scheduler.add(seq)
    scheduler.plan(1000.0)
    assert seq.waiting_since == 1000.0


def test_without_preemption_exactly_the_one_whose_page_cannot_be_had_ends() -> None:
    big, small = make_seq(1, 250, 200), make_seq(2, 100, 300)
    done = run([big, small], make_scheduler(num_pages=16, preempt=False))
    failed = [change for change in done.changes if change.kind is ChangeKind.FAILED]
    assert len(failed) == 1
    assert failed[0].message == "Context size has been exceeded."
    survivor = big if failed[0].seq_id == 2 else small
    assert survivor.tokens == alone(survivor)
    assert done.scheduler.counters.n_preempt == 0


@pytest.mark.parametrize("num_keep", [0, 20, 70])
def test_an_endless_chat_shifts_at_the_context_and_goes_on(num_keep: int) -> None:
    seq = make_seq(1, 100, 900, num_keep=num_keep)
    done = run([seq], make_scheduler(num_pages=8, context_shift=True))
    assert generated_by(done, seq) == alone_endless(seq, n_ctx=256)
    assert seq.num_generated == 900
    assert any(plan.page_shifts for plan in done.plans)


def test_a_shift_copies_what_another_holds() -> None:
    scheduler = make_scheduler(num_pages=24, n_ctx=256, context_shift=True)
    prompt = make_prompt(225)
    runner = Run(scheduler, FakeEngine(24))
    seqs = [make_seq(i, prompt=(*prompt, i), max_new_tokens=400) for i in (1, 2)]
    for seq in seqs:
        scheduler.add(seq)
    runner.until_idle()
    assert any(plan.page_copies for plan in runner.plans)
    for seq in seqs:
        assert generated_by(runner, seq) == alone_endless(seq, n_ctx=256)


def test_a_page_is_copied_before_it_is_given_up_and_taken_by_another() -> None:
    """Both shift in one step: the first copies a page that the second drops, and the third takes
    it for its next tokens."""
    scheduler = make_scheduler(num_pages=13, n_ctx=256, context_shift=True, preempt=False)
    prompt = make_prompt(225)
    copying = make_seq(1, prompt=(*prompt, 1), max_new_tokens=60)
    dropping = make_seq(2, prompt=(*prompt, 0, 1), max_new_tokens=60, num_discard=224)
    done = run([copying, dropping, make_seq(3, 4, 100)], scheduler)
    sources = [(i, copy.src) for i, plan in enumerate(done.plans) for copy in plan.page_copies]
    assert any(done.plans[i].grants[-1].pages[-1] == page for i, page in sources)
    assert generated_by(done, copying) == alone_endless(copying, n_ctx=256)


@pytest.mark.parametrize("order", LINE_ORDERS)
def test_endless_chats_take_turns_and_finish(order: str) -> None:
    seqs = [make_seq(i, 50, 2000, num_keep=32) for i in (1, 2, 3)]
    scheduler = make_scheduler(
        num_pages=12, n_ctx=384, context_shift=True, rotate_s=20.0, entry_order=order
    )
    done = Run(scheduler, FakeEngine(12))
    for seq in seqs:
        scheduler.add(seq)
    done.until_idle(max_steps=60_000)
    assert done.num_finished == 3
    assert all(seq.num_preempts for seq in seqs)
    for seq in seqs:
        assert generated_by(done, seq) == alone_endless(seq, n_ctx=384)


def test_chats_that_take_turns_under_pass_do_so_at_the_pace_of_rotation() -> None:
    seqs = [make_seq(i, length, 700) for i, length in enumerate((300, 60, 60, 60), 1)]
    scheduler = make_scheduler(
        num_pages=12, n_ctx=384, context_shift=True, rotate_s=20.0, entry_order="pass"
    )
    done = run(seqs, scheduler)
    assert done.num_finished == 4
    assert scheduler.counters.n_preempt < 400  # of 2,800 steps


def test_whoever_made_way_passes_nobody() -> None:
    """It would take back what it gave, and be asked for it again, for ever."""
    runner, head, small = waiting_behind("pass", makes_way=True)
    assert (head.status, small.status) == (Status.STARTED, Status.STARTED)
    runner.until_idle()
    assert runner.num_finished == 3


def test_a_budget_for_one_state_refuses_to_rotate_once_per_park_and_all_finish() -> None:
    seqs = [make_seq(i, 50, 900) for i in (1, 2)]
    scheduler = make_scheduler(num_pages=8, context_shift=True, rotate_s=5.0, host_budget_pages=5)
    done = Run(scheduler, FakeEngine(8))
    for seq in seqs:
        scheduler.add(seq)
    done.until_idle(max_steps=60_000)
    refusals = done.of(ChangeKind.ROTATION_REFUSED)
    assert refusals
    assert len(refusals) <= 1 + scheduler.counters.n_preempt
    assert done.num_finished == 2


def test_a_shifted_state_that_cannot_be_restored_ends_after_its_patience() -> None:
    scheduler = make_scheduler(num_pages=8, context_shift=True, preempt_every=300)
    engine = FakeEngine(8)
    engine.faults.transfer = lambda t: "bad" if t.direction is Direction.IN else None
    seq = make_seq(1, 50, 900)
    scheduler.add(seq)
    done = Run(scheduler, engine).until_idle()
    failed = done.changes[-1]
    assert (failed.kind, failed.message) == (
        ChangeKind.FAILED,
        "failed to restore the preempted sequence",
    )
    assert scheduler.pool.num_referenced == scheduler.store.num_held == 0


def shifting(num_failing: int) -> tuple[Run, Sequence]:
    """A chat that is parked every 100 tokens and has shifted by its third park; from then on so
    many copies out fail."""
    engine = FakeEngine(8, transfer_steps=1)
    seq = make_seq(1, 50, 900)
    failing = iter(range(num_failing))

    def fault(transfer: Transfer) -> str | None:
        is_due = transfer.direction is Direction.OUT and not seq.can_replay
        return "no memory" if is_due and next(failing, None) is not None else None

    engine.faults.transfer = fault
    scheduler = make_scheduler(num_pages=8, context_shift=True, preempt_every=100)
    scheduler.add(seq)
    return Run(scheduler, engine), seq


def test_a_shifted_state_that_does_not_get_out_stays_where_it_is() -> None:
    done, seq = shifting(num_failing=2)
    done.until_idle()
    assert generated_by(done, seq) == alone_endless(seq, n_ctx=256)
    counters = done.scheduler.counters
    assert (counters.n_preempt_fail, counters.n_preempt, counters.n_resume) == (2, 8, 8)
    told = [change.kind for change in done.changes]
    assert told == [ChangeKind.PREEMPTED, ChangeKind.RESUMED] * 8 + [ChangeKind.FINISHED]


def test_a_shifted_state_that_never_gets_out_is_given_up() -> None:
    done, seq = shifting(num_failing=900)
    done.until_idle()
    assert generated_by(done, seq) == alone_endless(seq, n_ctx=256)[:500]
    assert done.scheduler.counters.n_preempt_fail == 3
    assert done.changes[-1].message == "failed to restore the preempted sequence"
    assert done.scheduler.pool.num_referenced == done.scheduler.store.num_held == 0


def test_a_shifted_state_lost_in_the_store_is_given_up() -> None:
    """A page of it that another was copying out did not get there."""
    done, seq = shifting(num_failing=0)

    def lose(_: int) -> None:
        if seq.status is Status.PREEMPTED and not seq.can_replay:
            for host in done.scheduler._parking._left[seq.seq_id]:
                done.scheduler.store.lose(host)

    done.until_idle(each=lose)
    assert seq.status is Status.ENDED
    assert done.changes[-1].message == "failed to restore the preempted sequence"
    assert done.scheduler.pool.num_referenced == done.scheduler.store.num_held == 0


def test_a_shifted_victim_is_copied_even_over_the_budget_and_comes_back() -> None:
    seqs = [make_seq(i, 50, 700) for i in (1, 2)]
    scheduler = make_scheduler(
        num_pages=8, context_shift=True, preempt_every=350, host_budget_pages=0
    )
    for seq in seqs:
        scheduler.add(seq)
    done = Run(scheduler, FakeEngine(8)).until_idle(max_steps=30_000)
    parks = [c.parked for c in done.changes if c.parked is not None]
    assert any("over the budget" in park.why for park in parks)
    for seq in seqs:
        assert generated_by(done, seq) == alone_endless(seq, n_ctx=256)


def test_the_shared_prompt_of_a_family_is_computed_once_and_choices_queue() -> None:
    prompt = make_prompt(6 * PAGE_CELLS + 5)
    scheduler = make_scheduler(num_pages=8, num_slots=2, n_ctx=256)
    family = [make_seq(i, prompt=prompt, max_new_tokens=20) for i in (1, 2, 3, 4)]
    for seq in family:
        scheduler.add(seq)
    done = Run(scheduler, FakeEngine(8)).until_idle()
    assert done.num_finished == 4
    prompt_rows = sum(len(g.tokens) for p in done.plans for g in p.grants if g.start < len(prompt))
    assert prompt_rows <= len(prompt) + 3 * PAGE_CELLS + 4 * 20
    for seq in family:
        assert seq.tokens == alone(seq)
    assert scheduler.counters.n_preempt == 0 or scheduler.counters.n_recompute_tokens == 0
    assert SeqId(1) in {g.seq_id for g in done.plans[0].grants}


def resident(
    scheduler: Scheduler, seq_id: int, num_computed: int, *, priority: int = 0, **changes: object
) -> Sequence:
    """A decoding sequence put into its slot by hand."""
    seq = make_seq(seq_id, num_computed, 400, priority=priority)
    scheduler.add(seq)
    seq.status = Status.DECODE
    seq.tokens.append(1)
    seq.table = [scheduler.pool.take() for _ in range(pages_for(num_computed))]
    seq.num_computed = num_computed
    for name, value in changes.items():
        setattr(seq, name, value)
    return seq


@pytest.mark.parametrize(
    "spared",
    [{"num_preempts": 3}, {"status": Status.REPLAY}, {"priority": 1}, {"num_dropped": 32}],
)
def test_the_starved_replaying_higher_and_stuck_are_passed_over(spared: dict[str, Any]) -> None:
    """`num_dropped`: shifted, can only be copied, and the budget is 0 (behaviour P2, P5, P7)."""
    scheduler = make_scheduler(num_pages=15, n_ctx=480, host_budget_pages=0)
    resident(scheduler, 1, 255, priority=1)
    small, other = resident(scheduler, 2, 64, **spared), resident(scheduler, 3, 160)
    scheduler.plan(0.0)
    assert (small.num_preempts - int(str(spared.get("num_preempts", 0))), other.num_preempts) == (
        0,
        1,
    )
