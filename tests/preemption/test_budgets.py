"""Swap, recompute and every mixture of them, under every policy: nothing shows in the answer."""

from pathlib import Path

import pytest

from kvalet.core.policy import VICTIM_POLICIES
from tests.preemption.stage import WARM, Stage, chat
from tests.runtime.clients import Client

pytestmark = pytest.mark.native

NUM_PAGES = 16
DEFAULT = 8192 * 2**20 // 8192  # pages of the tiny model in 8192 MiB
BETWEEN = (7, 10)  # pages; the parks below are of 4 to 11


def four_chats() -> list[Client]:
    greedy = [chat(salt, 30 + 17 * salt, 230) for salt in (1, 2, 3)]
    return [*greedy, chat(4, 55, 230, sampling=WARM)]


@pytest.mark.parametrize("policy", VICTIM_POLICIES)
@pytest.mark.parametrize("budget", [None, 0, DEFAULT, *BETWEEN])
def test_budgets_and_policies(tiny: Path, budget: int | None, policy: str) -> None:
    on = Stage(tiny, NUM_PAGES, options={"host_budget_pages": budget, "victim_policy": policy})
    held: list[int] = []
    on.each = lambda plan: held.append(on.scheduler.store.num_held)
    on.finish(*four_chats())
    on.check_as_alone()
    on.check_pressed(swaps=budget != 0, replays=budget in (0, *BETWEEN), parks=3)
    assert max(held) <= (budget if budget is not None else DEFAULT)


@pytest.mark.parametrize("budget", [None, 0], ids=["swap", "recompute"])
def test_usage_and_timings_are_those_of_the_request_as_made(tiny: Path, budget: int | None) -> None:
    """A replay shows in `n_recompute` alone, not as prompt, cache or time of generating.
    A stage's clock goes a second a step."""
    lone = Stage(tiny, NUM_PAGES, options={"preempt_every": 8, "host_budget_pages": budget})
    lone.finish(chat(1, 100, 60))
    finished = lone.clients[0].finished
    timings = finished.timings
    assert (finished.num_prompt_tokens, finished.num_tokens) == (100, 60)
    assert (timings.prompt_n, timings.cache_n, timings.predicted_n) == (100, 0, 60)
    assert timings.prompt_ms == 1_000.0
    assert timings.predicted_ms + timings.parked_ms == (len(lone.engine.plans) - 1) * 1_000.0
    assert timings.n_preempt == lone.count("n_preempt") == 7
    assert timings.n_recompute == lone.count("n_recompute_tokens")
    assert (timings.n_recompute > 0) == (budget == 0)
    assert timings.parked_ms > 0
