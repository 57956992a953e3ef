"""What idle slots left, when it is parked, asked back, saved and restored while other things go on
(behaviour P14, C3)."""

from dataclasses import replace

import pytest

from kvalet.core.plan import (
    PAGE_CELLS,
    Direction,
    SlotId,
    StateLoad,
    Transfer,
)
from kvalet.core.sequence import Sequence, Status
from kvalet.core.store import HostPage
from kvalet.engine.fake import UNUSED, FakeEngine, StateFile
from tests.builders import Run, alone, alone_endless, make_prompt, make_scheduler, make_seq

SLOT, OTHER = SlotId(0), SlotId(1)
LONG_S = 1e6
PROMPT = make_prompt(4 * PAGE_CELLS + 5, salt=7)
KNOWN = PROMPT[: 4 * PAGE_CELLS]


def finished(
    engine: FakeEngine,
    prompt: tuple[int, ...] = PROMPT,
    *,
    cache: int | None = 0,
    budget: int | None = None,
    disk: int = 0,
    mirror: bool = False,
    n_ctx: int = 512,
) -> Run:
    """A chat has just ended in slot 0."""
    scheduler = make_scheduler(
        engine.num_pages,
        4,
        n_ctx=n_ctx,
        cache_budget_pages=cache,
        host_budget_pages=budget,
        disk_budget_pages=disk,
        mirror=mirror,
    )
    runner = Run(scheduler, engine)
    scheduler.add(make_seq(1, prompt=prompt, max_new_tokens=6, id_slot=0))
    return runner.until_idle()


def steps(runner: Run, count: int) -> None:
    for _ in range(count):
        runner.step(0.0)


def ask(runner: Run, seq: Sequence) -> Sequence:
    runner.scheduler.add(seq)
    runner.until_idle()
    assert seq.tokens == alone(seq)
    return seq


def state_file(tokens: tuple[int, ...]) -> StateFile:
    pages = [tokens[i : i + PAGE_CELLS] for i in range(0, len(tokens), PAGE_CELLS)]
    return StateFile(tokens, tuple(pages))


def damaged_file(tokens: tuple[int, ...]) -> StateFile:
    good = state_file(tokens)
    return replace(good, pages=((UNUSED,) * PAGE_CELLS, *good.pages[1:]))


def test_a_chat_erased_while_it_is_brought_back_stays_erased() -> None:
    runner = finished(FakeEngine(16, transfer_steps=3), cache=None)
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 6)
    runner.scheduler.resume(SLOT)
    runner.step(0.0)
    assert runner.scheduler.is_in_flight
    assert runner.scheduler.states.erase(SLOT) == len(KNOWN)
    runner.until_idle()
    assert runner.scheduler.pool.num_cached == 0
    assert ask(runner, make_seq(5, prompt=PROMPT)).num_cached == 0


def test_a_chat_is_brought_back_without_pushing_out_its_own_beginning() -> None:
    """What lies in the pool as cache is held before pages are taken for the rest."""
    prompt = make_prompt(8 * PAGE_CELLS + 5, salt=7)
    engine = FakeEngine(12, transfer_steps=1)
    runner = finished(engine, prompt, n_ctx=384)
    sharer = make_seq(2, prompt=prompt[: 4 * PAGE_CELLS + 1], max_new_tokens=40, id_slot=1)
    runner.scheduler.add(sharer)
    steps(runner, 3)
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 4)
    runner.scheduler.cancel(sharer.seq_id)
    runner.scheduler.add(make_seq(3, 7 * PAGE_CELLS - 20, 60, id_slot=2))
    steps(runner, 6)
    pool = runner.scheduler.pool
    assert (pool.num_free, pool.num_cached) == (1, 4)
    runner.scheduler.resume(SLOT)
    steps(runner, 3)
    assert (pool.num_free, pool.num_cached) == (0, 5)
    places = runner.scheduler._parking.places_of_ended(_last(runner))
    assert (len(places), sum(isinstance(place, HostPage) for place in places)) == (5, 0)


def test_a_chat_that_shares_only_the_beginning_is_not_the_next_request() -> None:
    system = make_prompt(2 * PAGE_CELLS, salt=3)
    engine = FakeEngine(16, transfer_steps=1)
    runner = finished(engine, (*system, *make_prompt(200, salt=7)))
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 4)
    seq = make_seq(2, prompt=(*system, *make_prompt(20, salt=9)), max_new_tokens=6, id_slot=1)
    runner.scheduler.add(seq)
    steps(runner, 20)
    assert seq.num_cached == 2 * PAGE_CELLS
    assert runner.scheduler.kept_slots == {SLOT}
    assert runner.scheduler.store.num_pinned == 8


@pytest.mark.parametrize("wait", [1, 8])
def test_a_request_that_goes_on_with_a_parked_chat_lets_go_of_it(wait: int) -> None:
    """Before its pages have left the pool, when nothing is copied back, and after."""
    runner = finished(FakeEngine(16, transfer_steps=3))
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, wait)
    seq = make_seq(2, prompt=(*PROMPT, 1, 2, 3), max_new_tokens=6, id_slot=0)
    runner.scheduler.add(seq)
    steps(runner, 30)
    assert (seq.status, seq.num_cached) == (Status.ENDED, len(KNOWN))
    assert not runner.scheduler.kept_slots
    assert runner.scheduler.store.num_pinned == 0


def test_a_slot_parked_for_an_earlier_request_can_be_parked_for_the_last() -> None:
    runner = finished(FakeEngine(16, transfer_steps=1))
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 5)
    runner.scheduler.add(make_seq(2, 70, 6, id_slot=0))
    steps(runner, 20)
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 5)
    assert runner.scheduler.kept_slots == {SLOT}
    assert runner.scheduler.store.num_pinned == 2  # of the last request's 75 cells


@pytest.mark.parametrize("budget", [None, 2])
def test_parking_takes_what_lies_on_the_host_already(budget: int | None) -> None:
    """But to disk nothing is copied that only RAM has: it stays there."""
    prompt = make_prompt(8 * PAGE_CELLS + 5, salt=7)
    engine = FakeEngine(16, transfer_steps=1)
    runner = finished(engine, prompt, cache=None, budget=budget, disk=20, mirror=True)
    runner.scheduler.add(make_seq(2, 12 * PAGE_CELLS, 3, id_slot=1))
    runner.until_idle()
    places = runner.scheduler._parking.places_of_ended(_last(runner))
    num_on_host = sum(isinstance(place, HostPage) for place in places)
    assert (len(places), num_on_host) == (8, 5)
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 3)
    store = runner.scheduler.store
    assert (store.num_pinned, store.num_on_disk) == ((8, 0) if budget is None else (0, 3))
    assert len(runner.scheduler._parking.places_of_ended(_last(runner))) == 8
    assert ask(runner, make_seq(3, prompt=prompt, max_new_tokens=3)).num_cached == len(prompt) - 5


def _last(runner: Run) -> Sequence:
    seq = runner.scheduler.occupant(SLOT)
    assert seq is not None
    return seq


def test_what_a_resumed_slot_lets_go_of_fits_the_cache() -> None:
    runner = finished(FakeEngine(16, transfer_steps=4), cache=2)
    runner.scheduler.park(SLOT, 1.0)
    for _ in range(12):
        runner.step()
    assert runner.scheduler.store.num_cached == 2
    ask(runner, make_seq(2, 130, 3, id_slot=0))
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 8)
    assert (runner.scheduler.store.num_pinned, runner.scheduler.store.num_cached) == (4, 2)
    runner.scheduler.resume(SLOT)
    runner.scheduler.check()
    runner.until_idle()
    assert runner.scheduler.store.num_cached == 2


def test_a_damaged_file_is_no_success_for_whoever_asks_second() -> None:
    engine = FakeEngine(16, transfer_steps=2)
    runner = Run(make_scheduler(16, cache_budget_pages=None), engine)
    engine.files["state"] = damaged_file(KNOWN)
    for slot in (SLOT, OTHER):
        runner.scheduler.states.restore(slot, "state", KNOWN, LONG_S)
    steps(runner, 6)
    failed = [t for outcome in runner.outcomes for t in outcome.failed_transfers]
    assert failed == [0, 1]
    assert not runner.scheduler.kept_slots
    assert runner.scheduler.store.num_held == 0


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_file_pushes_out_what_is_cached_only_once_it_is_read(is_damaged: bool) -> None:
    """It goes to disk, since no more can be pinned in RAM; two of its pages are cached there."""
    prompt = PROMPT[: 2 * PAGE_CELLS + 5]
    engine = FakeEngine(16, transfer_steps=1)
    runner = finished(engine, prompt, cache=None, budget=2, disk=4)
    runner.scheduler.park(SLOT, 3.0)
    for _ in range(6):
        runner.step()
    store = runner.scheduler.store
    assert (store.num_cached, runner.scheduler.pool.num_cached) == (2, 0)
    engine.files["state"] = damaged_file(KNOWN) if is_damaged else state_file(KNOWN)
    runner.scheduler.states.restore(OTHER, "state", KNOWN, LONG_S)
    steps(runner, 1)
    assert (store.num_cached, store.num_on_disk) == (2, 4)
    steps(runner, 3)
    assert (store.num_cached, store.num_on_disk) == ((2, 0) if is_damaged else (0, 4))
    again = ask(runner, make_seq(5, prompt=PROMPT, max_new_tokens=6))
    assert again.num_cached == (2 if is_damaged else 4) * PAGE_CELLS


def test_a_restore_reads_only_what_the_store_has_not() -> None:
    prompt = PROMPT[: 2 * PAGE_CELLS + 5]
    engine = FakeEngine(16, transfer_steps=1)
    runner = finished(engine, prompt)
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 4)
    engine.files["state"] = state_file(KNOWN)
    runner.scheduler.states.restore(OTHER, "state", KNOWN, LONG_S)
    steps(runner, 4)
    [load] = [t for plan in runner.plans for t in plan.transfers if isinstance(t, StateLoad)]
    assert [index for index, _ in load.moves] == [2, 3]
    assert runner.scheduler.store.num_pinned == 4
    assert ask(runner, make_seq(5, prompt=PROMPT, max_new_tokens=6)).num_cached == len(KNOWN)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_park_does_not_count_on_a_file_that_is_read(is_damaged: bool) -> None:
    """A file makes way for everybody and may be broken, and a shifted chat has only its pages."""
    engine = FakeEngine(16, transfer_steps=2)
    scheduler = make_scheduler(16, 3, n_ctx=256, context_shift=True, rotate_s=1e9)
    runner = Run(scheduler, engine)
    seq = make_seq(1, prompt=PROMPT, max_new_tokens=300, num_keep=2 * PAGE_CELLS, id_slot=0)
    scheduler.add(seq)
    while not seq.num_dropped:
        runner.step(0.0)
    file = state_file(PROMPT[: 2 * PAGE_CELLS])
    engine.files["state"] = damaged_file(file.tokens) if is_damaged else file
    scheduler.states.restore(OTHER, "state", file.tokens, LONG_S)
    scheduler.park(SLOT, LONG_S)
    steps(runner, 6)
    assert seq.status is Status.PREEMPTED
    assert scheduler.num_in_host(seq) == -(-seq.num_computed // PAGE_CELLS)
    [out] = [t for plan in runner.plans for t in plan.transfers if isinstance(t, Transfer)]
    assert (out.direction, len(out.moves)) == (Direction.OUT, scheduler.num_in_host(seq))
    scheduler.resume(SLOT)
    runner.until_idle()
    assert seq.tokens[-20:] == alone_endless(seq, 256)[-20:]
    assert scheduler.counters.n_preempt_fail == 0


def test_a_restore_uses_the_pages_that_are_being_copied_back_from_disk() -> None:
    """Nobody pins them, but they are not yet gone."""
    engine = FakeEngine(16, transfer_steps=3)
    runner = finished(engine, budget=0, disk=5)
    runner.scheduler.park(SLOT, LONG_S)
    steps(runner, 5)
    runner.scheduler.resume(SLOT)
    runner.step(0.0)
    longer = (*KNOWN, *make_prompt(PAGE_CELLS, salt=9))
    engine.files["state"] = state_file(longer)
    runner.scheduler.states.restore(OTHER, "state", longer, LONG_S)
    steps(runner, 8)
    [load] = [t for plan in runner.plans for t in plan.transfers if isinstance(t, StateLoad)]
    assert [index for index, _ in load.moves] == [4]
    assert runner.scheduler.store.num_on_disk == 5
    assert runner.scheduler.kept_slots == {OTHER}
