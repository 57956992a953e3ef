"""Without preemption, and without the planner's lookahead (behaviour P6, P9, P12)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvalet.core.plan import Grant, StepPlan
from kvalet.core.sequence import Status
from kvalet.runtime.messages import Failed
from tests.builders import SchedulerOptions
from tests.preemption.stage import Stage, chat

pytestmark = pytest.mark.native

BUDGETS = pytest.mark.parametrize("budget", [None, 0], ids=["no limit", "none"])


def test_without_preemption_exactly_the_one_whose_page_cannot_be_had_ends(tiny: Path) -> None:
    chats = [chat(1, 100, 200), chat(2, 60, 250)]
    on = Stage(tiny, 12, options={"preempt": False}).finish(*chats)
    failed = [client for client in chats if isinstance(client.events[-1], Failed)]
    survivors = [client for client in chats if client not in failed]
    assert [str(client.error) for client in failed] == ["Context size has been exceeded."]
    on.check_as_alone(*survivors)
    assert (on.count("n_preempt"), on.engine.peak_pages) == (0, 12)


def parks_mid_prompt(on: Stage) -> Callable[[StepPlan], None]:
    """Notes the steps in which somebody was parked while a prompt was part-way through."""
    before = [0]

    def watch(plan: StepPlan) -> None:
        parks = on.scheduler.counters.n_preempt
        seqs = [seq for seq in on.scheduler.slots if seq is not None]
        is_part_way = any(seq.status is Status.PREFILL and seq.num_computed for seq in seqs)
        if parks > before[0] and is_part_way:
            on.noted.append(plan.step)
        before[0] = parks

    return watch


@BUDGETS
def test_with_the_planner_off_decoding_reaches_the_last_resort(
    tiny: Path, budget: int | None
) -> None:
    options: SchedulerOptions = {"planner": False, "host_budget_pages": budget}
    chats = [chat(salt, 40 + 9 * salt, 200) for salt in (1, 2, 3)]
    on = Stage(tiny, 14, options=options).finish(*chats)
    on.check_as_alone()
    assert on.engine.peak_pages == 14  # to the last page: nobody looked ahead
    on.check_pressed(swaps=budget is None, replays=budget == 0)
    assert on.count("prompt_tokens") == sum(len(client.wanted.prompt) for client in chats)
    assert on.count("tokens_predicted") == 600


@BUDGETS
def test_with_the_planner_off_a_prompt_reaches_the_last_resort(
    tiny: Path, budget: int | None
) -> None:
    """Three generators take pages from under a prompt that is computed 16 tokens a step."""
    options: SchedulerOptions = {
        "planner": False,
        "host_budget_pages": budget,
        "decode_chunk": 16,
    }
    generators = [chat(salt, 20 + salt, 120) for salt in (1, 2, 3)]
    prompt = chat(4, 330, 30)
    on = Stage(tiny, 15, options=options)
    on.each = parks_mid_prompt(on)
    on.at = {5: lambda: on.submit(prompt)}
    on.finish(*generators)
    on.check_as_alone()
    assert on.noted
    assert prompt.finished.timings.prompt_n == 330
    assert on.engine.peak_pages == 15
    on.check_pressed(swaps=budget is None, replays=budget == 0)


@BUDGETS
@pytest.mark.parametrize("part", ["decode", "prompt"])
def test_what_the_engine_leaves_out_stays_at_its_token_boundary(
    tiny: Path, budget: int | None, part: str
) -> None:
    """Every fifth step has no room for those that decode, or for those with a prompt. Nothing has a
    name, else what is parked here, of whole pages, would be found in the pool again."""
    chats = [chat(salt, 150, 60, cache_prompt=False) for salt in (1, 2, 3)]
    on = Stage(tiny, 24, options={"batch_size": 64, "host_budget_pages": budget})
    left_out: list[int] = []

    def no_room(grant: Grant) -> bool:
        is_decode = grant.draws and grant.draws[-1].index > 0
        is_meant = is_decode if part == "decode" else len(grant.tokens) > 1 and grant.start > 0
        if is_meant and len(on.engine.plans) % 5 == 0:
            left_out.append(grant.seq_id)
            return True
        return False

    on.engine.faults.no_room = no_room
    on.finish(*chats)
    on.check_as_alone()
    assert left_out
    assert on.count("n_preempt") == on.count("n_resume") >= 1
    on.check_moved(swaps=budget is None, replays=budget == 0)
    assert on.count("prompt_tokens") == 450
    assert [client.finished.timings.prompt_n for client in chats] == [150] * 3
