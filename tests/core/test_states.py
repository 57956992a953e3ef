"""State files of idle slots: contents, where they go, what a broken one does (behaviour C3)."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from typing_extensions import override

from kvalet.core.plan import PAGE_CELLS, SlotId, StateLoad, StateSave, StepOutcome, StepPlan
from kvalet.core.sequence import Sequence, Status
from kvalet.engine.base import DrawMask
from kvalet.engine.fake import FakeEngine
from kvalet.errors import Conflict
from tests.builders import Run, alone, make_prompt, make_scheduler, make_seq

SLOT, OTHER = SlotId(0), SlotId(1)
NUM_PAGES = 16
PROMPT = make_prompt(4 * PAGE_CELLS + 5, salt=7)


def finished(*, cache: int | None = 0, budget: int | None = None, disk: int = 0) -> Run:
    """A chat of four full pages has just ended in slot 0."""
    scheduler = make_scheduler(
        NUM_PAGES, cache_budget_pages=cache, host_budget_pages=budget, disk_budget_pages=disk
    )
    runner = Run(scheduler, FakeEngine(NUM_PAGES, transfer_steps=1))
    scheduler.add(make_seq(1, prompt=PROMPT, max_new_tokens=6))
    return runner.until_idle()


def saved(runner: Run, path: str = "state") -> tuple[int, ...]:
    _, num_tokens = runner.scheduler.states.save(SLOT, path)
    runner.until_idle()
    return PROMPT[:num_tokens]


def ask_again(runner: Run) -> Sequence:
    seq = make_seq(5, prompt=PROMPT, max_new_tokens=6)
    runner.scheduler.add(seq)
    runner.until_idle()
    assert seq.tokens == alone(seq)
    return seq


def forget_everything(runner: Run) -> None:
    runner.scheduler.states.erase(SLOT)
    runner.until_idle()
    assert runner.scheduler.pool.num_cached == runner.scheduler.store.num_held == 0


def test_a_save_holds_the_whole_pages() -> None:
    runner = finished()
    _, num_tokens = runner.scheduler.states.save(SLOT, "state")
    assert num_tokens == 4 * PAGE_CELLS
    runner.until_idle()
    [save] = [t for plan in runner.plans for t in plan.transfers if isinstance(t, StateSave)]
    assert (save.path, save.tokens) == ("state", PROMPT[:num_tokens])


class EndlessSaves(FakeEngine):
    """State files that are never done."""

    @override
    def execute(self, plan: StepPlan, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        kept = tuple(t for t in plan.transfers if not isinstance(t, StateSave))
        return super().execute(replace(plan, transfers=kept), masks)


def test_nobody_waits_for_the_pages_that_a_save_holds() -> None:
    runner = Run(make_scheduler(10), EndlessSaves(10))
    runner.scheduler.add(make_seq(1, 5 * PAGE_CELLS, 6))
    runner.until_idle()
    seqs = [make_seq(seq_id, 40, 90) for seq_id in (2, 3)]
    for seq in seqs:
        runner.scheduler.add(seq)
    runner.step()
    runner.scheduler.states.save(SLOT, "state")
    for _ in range(300):
        runner.step()
    assert [seq.status for seq in seqs] == [Status.ENDED] * 2
    assert [seq.tokens for seq in seqs] == [alone(seq) for seq in seqs]
    assert runner.scheduler.counters.n_preempt == 1
    assert runner.scheduler.counters.n_waits_for_copy == 0


def test_what_was_saved_is_used_after_it_was_restored() -> None:
    runner = finished()
    tokens = saved(runner)
    forget_everything(runner)
    runner.scheduler.states.restore(OTHER, "state", tokens, 1e6)
    runner.until_idle()
    assert runner.scheduler.kept_slots == {OTHER}
    assert ask_again(runner).num_cached == 4 * PAGE_CELLS
    runner.step()
    assert not runner.scheduler.kept_slots
    assert runner.scheduler.store.num_pinned == 0


def test_a_save_takes_pages_from_the_store_too() -> None:
    runner = finished()
    runner.scheduler.park(SLOT, timeout_s=1e6)
    runner.until_idle()
    assert runner.scheduler.pool.num_cached == 0
    tokens = saved(runner)
    assert len(tokens) == 4 * PAGE_CELLS
    forget_everything(runner)
    runner.scheduler.states.restore(SLOT, "state", tokens, 1e6)
    runner.until_idle()
    assert ask_again(runner).num_cached == 4 * PAGE_CELLS


def test_a_broken_file_changes_nothing() -> None:
    runner = finished()
    tokens = saved(runner)
    before = (runner.scheduler.pool.num_cached, runner.scheduler.occupant(SLOT))
    wrong = (tokens[0] + 1, *tokens[1:])
    runner.scheduler.states.restore(SLOT, "state", wrong, 1e6)
    runner.until_idle()
    assert any(outcome.failed_transfers for outcome in runner.outcomes)
    assert (runner.scheduler.pool.num_cached, runner.scheduler.occupant(SLOT)) == before
    assert runner.scheduler.store.num_held == 0
    assert not runner.scheduler.kept_slots


@pytest.mark.parametrize("disk", [0, 4])
def test_a_restore_stays_within_the_budgets(disk: int) -> None:
    runner = finished(budget=3, disk=disk)
    tokens = saved(runner)
    forget_everything(runner)
    if not disk:
        with pytest.raises(Conflict, match="does not hold 4 pages"):
            runner.scheduler.states.restore(SLOT, "state", tokens, 1e6)
        return
    runner.scheduler.states.restore(SLOT, "state", tokens, 1e6)
    runner.until_idle()
    assert runner.scheduler.store.num_on_disk == 4
    assert ask_again(runner).num_cached == 4 * PAGE_CELLS
    runner.step()
    runner.until_idle()
    assert runner.scheduler.store.num_on_disk == 0


def test_what_the_store_has_is_not_read_again() -> None:
    runner = finished()
    tokens = saved(runner)
    runner.scheduler.park(SLOT, timeout_s=1e6)
    runner.until_idle()
    runner.scheduler.states.restore(OTHER, "state", tokens, 1e6)
    runner.until_idle()
    [load] = [t for plan in runner.plans for t in plan.transfers if isinstance(t, StateLoad)]
    assert load.moves == ()


def test_an_erased_chat_is_found_by_nobody() -> None:
    runner = finished(cache=None)
    assert runner.scheduler.states.erase(SLOT) == 4 * PAGE_CELLS
    assert ask_again(runner).num_cached == 0
    with pytest.raises(Conflict, match="holds nothing"):
        runner.scheduler.states.erase(SlotId(3))


def test_pages_that_others_hold_are_not_erased() -> None:
    runner = finished()
    sharer = make_seq(2, prompt=PROMPT[: 2 * PAGE_CELLS + 1], max_new_tokens=60, id_slot=1)
    runner.scheduler.add(sharer)
    for _ in range(3):
        runner.step()
    assert runner.scheduler.states.erase(SLOT) == 2 * PAGE_CELLS
    runner.until_idle()
    assert sharer.tokens == alone(sharer)


def test_busy_and_empty_slots_conflict() -> None:
    runner = finished()
    runner.scheduler.add(make_seq(2, 40, 60, id_slot=0))
    runner.step()
    states = runner.scheduler.states
    for act in (
        lambda: states.save(SLOT, "state"),
        lambda: states.restore(SLOT, "state", PROMPT[:32], 1.0),
        lambda: states.erase(SLOT),
    ):
        with pytest.raises(Conflict, match="slot 0 is not idle"):
            act()
    with pytest.raises(Conflict, match="slot 1 is idle and holds nothing"):
        states.save(OTHER, "state")


def test_a_slot_parked_and_asked_back_before_its_copy_landed_keeps_its_cache() -> None:
    runner = finished()
    runner.scheduler.park(SLOT, timeout_s=1e6)
    runner.step()
    runner.scheduler.resume(SLOT)
    runner.until_idle()
    assert ask_again(runner).num_cached == 4 * PAGE_CELLS


def test_a_page_that_a_running_chat_holds_keeps_its_name_when_an_idle_slot_is_parked() -> None:
    runner = finished()
    sharer = make_seq(2, prompt=PROMPT, max_new_tokens=60, id_slot=1)
    runner.scheduler.add(sharer)
    for _ in range(3):
        runner.step()
    runner.scheduler.park(SLOT, timeout_s=1e6)
    for _ in range(5):
        runner.step()
    runner.scheduler.resume(SLOT)
    assert runner.scheduler.pool.num_shared == 0
    third = make_seq(3, prompt=PROMPT, max_new_tokens=5)
    runner.scheduler.add(third)
    runner.step()
    assert runner.scheduler.pool.num_shared == 4
    runner.until_idle()
