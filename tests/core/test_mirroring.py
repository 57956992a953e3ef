"""Copies ahead of need: what is copied, what that saves, what it never does (behaviour A4)."""

from itertools import pairwise

import pytest

from kvalet.core.mirroring import PORTION
from kvalet.core.plan import PAGE_CELLS, Direction, PageId, SlotId, Transfer
from kvalet.core.sequence import Sequence, Status
from kvalet.engine.fake import FakeEngine
from tests.builders import Run, alone, make_prompt, make_scheduler, make_seq

NUM_PAGES = 16


def make_run(
    *, mirror: bool = True, cache: int | None = None, budget: int | None = None, delay: int = 2
) -> Run:
    scheduler = make_scheduler(
        NUM_PAGES,
        mirror=mirror,
        cache_budget_pages=cache,
        host_budget_pages=budget,
        lookahead_steps=8,
    )
    return Run(scheduler, FakeEngine(NUM_PAGES, transfer_steps=delay))


def copies(runner: Run, direction: Direction, *, ahead: bool) -> list[Transfer]:
    return [
        transfer
        for plan in runner.plans
        for transfer in plan.transfers
        if isinstance(transfer, Transfer)
        and transfer.direction is direction
        and (transfer.seq_id is None) == ahead
    ]


def num_pages(transfers: list[Transfer]) -> int:
    return sum(len(transfer.moves) for transfer in transfers)


def two_growing_chats(runner: Run) -> list[Sequence]:
    seqs = [make_seq(seq_id, 120, 250) for seq_id in (1, 2)]
    for seq in seqs:
        runner.scheduler.add(seq)
    runner.until_idle()
    assert runner.scheduler.counters.n_preempt >= 1
    assert [seq.tokens for seq in seqs] == [
        alone(seq, runner.scheduler.config.n_ctx) for seq in seqs
    ]
    return seqs


def test_a_park_copies_only_what_was_not_copied_before() -> None:
    plain, ahead = make_run(mirror=False, cache=0), make_run()
    two_growing_chats(plain)
    two_growing_chats(ahead)
    first_plain = copies(plain, Direction.OUT, ahead=False)[0]
    first_ahead = copies(ahead, Direction.OUT, ahead=False)[0]
    assert len(first_plain.moves) >= 6
    assert len(first_ahead.moves) <= 2
    counters = ahead.scheduler.counters
    assert counters.parked_pages_mirrored >= 5
    assert counters.pages_mirrored == num_pages(copies(ahead, Direction.OUT, ahead=True))


def test_no_page_is_copied_twice_ahead() -> None:
    runner = make_run()
    two_growing_chats(runner)
    moved = copies(runner, Direction.OUT, ahead=True)
    hosts = [host for transfer in moved for _, host in transfer.moves]
    assert len(hosts) == len(set(hosts)) > 5


def test_portions_are_small_and_wait_for_each_other() -> None:
    runner = make_run(delay=3)
    two_growing_chats(runner)
    started = [plan.step for plan in runner.plans for t in plan.transfers if not _is_of_a_chat(t)]
    assert all(later - earlier >= 3 for earlier, later in pairwise(started))
    assert all(len(t.moves) <= PORTION for t in copies(runner, Direction.OUT, ahead=True))


def _is_of_a_chat(transfer: object) -> bool:
    return isinstance(transfer, Transfer) and transfer.seq_id is not None


def test_running_chats_are_not_copied_ahead_while_the_pool_is_mostly_clear() -> None:
    runner = make_run()
    seqs = [make_seq(seq_id, 40, 60) for seq_id in (1, 2)]
    for seq in seqs:
        runner.scheduler.add(seq)
    while not seqs[0].finish_reason:
        assert not copies(runner, Direction.OUT, ahead=True)
        runner.step()


def test_what_a_finished_chat_leaves_is_copied_although_nobody_computes() -> None:
    runner = make_run()
    runner.scheduler.add(make_seq(1, 100, 60))
    runner.until_idle()
    assert num_pages(copies(runner, Direction.OUT, ahead=True)) == 159 // PAGE_CELLS
    assert runner.scheduler.store.num_cached == runner.scheduler.pool.num_cached == 4


def test_the_leader_is_not_copied_ahead() -> None:
    runner = make_run()
    leader, other = make_seq(1, 300, 40), make_seq(2, 70, 40)
    for seq in (leader, other):
        runner.scheduler.add(seq)
    for _ in range(30):
        runner.step()
    moved = {page for t in copies(runner, Direction.OUT, ahead=True) for page, _ in t.moves}
    assert moved
    assert moved <= set(other.table)


def test_pages_copied_ahead_count_against_the_cache_and_no_more() -> None:
    runner = make_run(cache=3)
    for seq_id in (1, 2):
        runner.scheduler.add(make_seq(seq_id, 120, 250))
    runner.until_idle(each=lambda _: _check_cached(runner, 3))
    assert copies(runner, Direction.OUT, ahead=True)


def _check_cached(runner: Run, limit: int) -> None:
    assert runner.scheduler.store.num_cached <= limit


def test_a_full_cache_is_not_turned_over_and_over() -> None:
    runner = make_run(cache=2)
    two_growing_chats(runner)
    assert num_pages(copies(runner, Direction.OUT, ahead=True)) <= 3 * 2


def test_copying_ahead_goes_on_though_the_oldest_on_the_host_is_in_the_pool_too() -> None:
    scheduler = make_scheduler(16, 2, cache_budget_pages=12, mirror=True)
    runner = Run(scheduler, FakeEngine(16, transfer_steps=1))
    system = make_prompt(2 * PAGE_CELLS, salt=3)
    mirrored = []
    for seq_id in range(1, 15):
        prompt = (*system, *make_prompt(100, salt=10 + seq_id))
        scheduler.add(make_seq(seq_id, prompt=prompt, max_new_tokens=3))
        runner.until_idle()
        mirrored.append(scheduler.counters.pages_mirrored)
    assert all(later > earlier for earlier, later in pairwise(mirrored))


def test_copying_ahead_stops_where_the_cache_holds_only_what_the_pool_has() -> None:
    """Nor does anything the cache holds make room then."""
    scheduler = make_scheduler(16, 2, cache_budget_pages=2, mirror=True)
    runner = Run(scheduler, FakeEngine(16, transfer_steps=1))
    scheduler.add(make_seq(1, 200, 3))
    runner.until_idle()
    assert (scheduler.pool.num_cached, scheduler.store.num_cached) == (6, 2)
    assert scheduler.counters.pages_mirrored == 2


def test_a_prefix_pushed_out_of_the_pool_comes_back_from_the_store() -> None:
    runner = make_run()
    prompt = make_prompt(5 * PAGE_CELLS + 3, salt=1)
    first = make_seq(1, prompt=prompt, max_new_tokens=4)
    runner.scheduler.add(first)
    runner.until_idle()
    for seq_id in (2, 3, 4):
        runner.scheduler.add(make_seq(seq_id, 400, 60))
        runner.until_idle()
    second = make_seq(9, prompt=tuple(first.tokens), max_new_tokens=10)
    runner.scheduler.add(second)
    runner.until_idle()
    counters = runner.scheduler.counters
    assert second.num_cached == 5 * PAGE_CELLS
    assert counters.prefix_pages_host >= 4
    assert second.tokens == alone(second)


def _breaks_copies_ahead(transfer: Transfer) -> str | None:
    return "injected" if transfer.seq_id is None else None


def _breaks_nothing(transfer: Transfer) -> str | None:
    return None


def test_a_failed_copy_ahead_costs_nothing_but_the_copy() -> None:
    runner = make_run()
    assert isinstance(runner.engine, FakeEngine)
    runner.engine.faults.transfer = _breaks_copies_ahead
    two_growing_chats(runner)
    assert runner.scheduler.counters.n_preempt_fail == 0
    assert runner.scheduler.store.num_held == 0 or runner.scheduler.store.num_cached > 0


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_park_that_counts_on_a_copy_ahead_waits_for_it(is_broken: bool) -> None:
    """It is under way when the park is issued; if it fails, the tokens are computed again."""
    runner = make_run(delay=6)
    assert isinstance(runner.engine, FakeEngine)
    runner.engine.faults.transfer = _breaks_copies_ahead if is_broken else _breaks_nothing
    leader, seq = make_seq(1, 300, 30), make_seq(2, 100, 30)
    for each in (leader, seq):
        runner.scheduler.add(each)
    while not copies(runner, Direction.OUT, ahead=True):
        runner.step()
    runner.scheduler.park(SlotId(1), timeout_s=20.0)
    runner.step()
    while seq.status is Status.PREEMPTING:
        assert len(seq.table) == 4
        runner.step()
    for page in range(NUM_PAGES):
        runner.scheduler.pool.forget(PageId(page))
    runner.until_idle()
    assert bool(seq.num_recomputed) == is_broken
    assert [s.tokens for s in (leader, seq)] == [alone(s) for s in (leader, seq)]
