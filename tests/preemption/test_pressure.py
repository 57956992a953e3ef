"""Chats that fit alone and not together: all finish as they are alone (behaviour T5 to T12).

Each test says that it pressed (who was parked, or had to wait, for which nothing is moved; how full
the pool was) and what that moved.
"""

from pathlib import Path

import pytest

from kvalet.core.plan import PAGE_CELLS, FinishReason, StepPlan
from kvalet.core.sequence import Status
from kvalet.runtime.messages import Preempted
from tests.builders import make_prompt
from tests.preemption.stage import WARM, Stage, chat

pytestmark = pytest.mark.native

BUDGETS = pytest.mark.parametrize("budget", [None, 0], ids=["swap", "recompute"])


@BUDGETS
def test_two_that_fit_alone_and_not_together(tiny: Path, budget: int | None) -> None:
    chats = [chat(1, 40, 200), chat(2, 40, 200, sampling=WARM)]
    done = Stage(tiny, 10, options={"host_budget_pages": budget}).finish(*chats)
    done.check_as_alone()
    done.check_pressed(swaps=budget is None, replays=budget == 0)
    assert [client.finished.num_tokens for client in chats] == [200, 200]


@BUDGETS
def test_two_long_prompts_that_do_not_fit_together(tiny: Path, budget: int | None) -> None:
    chats = [chat(salt, 350, 60) for salt in (1, 2)]
    done = Stage(tiny, 16, options={"host_budget_pages": budget}).finish(*chats)
    done.check_as_alone()
    assert [client.count(Preempted) for client in chats] == [0, 1]  # it waits: no park
    assert (done.count("n_preempt"), done.engine.peak_pages) == (0, 13)
    done.check_moved(swaps=False, replays=False)


@BUDGETS
def test_two_1000_token_prompts_a_step_apart_in_40_pages(tiny: Path, budget: int | None) -> None:
    """The first is 512 tokens far when the second arrives; once it is all computed, 31 pages are
    taken and the second, which needs 32, waits for it."""
    first, second = chat(1, 1000, 100), chat(2, 1000, 100)
    on = Stage(tiny, 40, options={"host_budget_pages": budget})
    on.at = {1: lambda: on.submit(second)}
    on.finish(first)
    on.check_as_alone()
    assert (first.count(Preempted), second.count(Preempted)) == (0, 1)
    assert on.engine.peak_pages == 35
    assert (on.count("n_preempt"), on.count("prompt_tokens")) == (0, 2000)
    on.check_moved(swaps=False, replays=False)


@BUDGETS
def test_a_generator_beside_a_big_prompt(tiny: Path, budget: int | None) -> None:
    """The prompt enters beside the generator, which then grows until one of them has to go."""
    generator, big = chat(1, 20, 250), chat(2, 320, 150)
    on = Stage(tiny, 16, options={"host_budget_pages": budget})
    on.at = {60: lambda: on.submit(big)}
    on.finish(generator)
    on.check_as_alone()
    on.check_pressed(swaps=budget is None, replays=budget == 0)


@BUDGETS
def test_two_250_token_prompts_in_a_pool_of_256(tiny: Path, budget: int | None) -> None:
    chats = [chat(salt, 250, 50) for salt in (1, 2)]
    done = Stage(tiny, 8, options={"host_budget_pages": budget}).finish(*chats)
    done.check_as_alone()
    assert [client.finished.reason for client in chats] == [FinishReason.CONTEXT] * 2
    assert [client.finished.num_tokens for client in chats] == [6, 6]
    assert [client.count(Preempted) for client in chats] == [0, 1]
    assert (done.count("n_preempt"), done.engine.peak_pages) == (0, 8)
    done.check_moved(swaps=False, replays=False)


def test_both_hold_a_cached_prefix_beside_a_growing_leader(tiny: Path) -> None:
    """The prefix is held by two: parking one of them gains its own pages only, and the store holds
    the prefix once."""
    prefix = make_prompt(4 * PAGE_CELLS, salt=9)
    ended = chat(9, prompt=(*prefix, 7), max_new_tokens=10)
    leader = chat(1, 150, 330)
    sharers = [chat(i, prompt=(*prefix, i), max_new_tokens=150) for i in (2, 3)]
    on = Stage(tiny, 16)
    most_shared: list[int] = []
    on.each = lambda plan: most_shared.append(on.scheduler.pool.num_shared)
    on.at = {5: lambda: on.submit(leader, *sharers)}
    on.finish(ended)
    on.check_as_alone(leader, *sharers)
    assert [client.finished.timings.cache_n for client in sharers] == [128, 128]
    assert max(most_shared) >= 4
    assert leader.count(Preempted) == 0
    on.check_pressed(swaps=True, replays=False)
    assert on.count("parked_pages_mirrored") >= 4  # the prefix, when the second is parked


def test_a_parked_chat_whose_co_holder_ends_and_whose_prefix_is_evicted(tiny: Path) -> None:
    """What it shared leaves the pool while it is away; its own copy in the store brings it back."""
    prefix = make_prompt(4 * PAGE_CELLS, salt=9)
    co_holder = chat(1, prompt=(*prefix, 1), max_new_tokens=60)
    parked = chat(2, prompt=(*prefix, 2), max_new_tokens=80)
    filler = chat(3, 470, 40)
    on = Stage(tiny, 16)
    seen: list[Status] = []

    def note_absence(plan: StepPlan) -> None:
        seq = on.sequence(parked)
        if seq is not None:
            seen.append(seq.status)

    on.each = note_absence
    on.at = {
        20: lambda: on.service.park(1, timeout_s=1e6),
        80: lambda: on.submit(filler),
        100: lambda: on.service.resume(1),
    }
    on.finish(co_holder, parked)
    on.check_as_alone()
    assert Status.PREEMPTED in seen
    assert on.engine.peak_pages == 16  # the filler's: nothing of the prefix can have stayed
    page_bytes = on.engine.info.page_bytes
    assert on.count("preempt_bytes_in") == on.count("preempt_bytes_out") == 5 * page_bytes
    assert on.count("n_recompute_tokens") == 0
