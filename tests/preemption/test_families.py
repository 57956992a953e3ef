"""n > 1: one prompt, held once; a family that overflows the pool still finishes (behaviour P11)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvalet.core.request import SamplingParams
from kvalet.runtime.messages import Event, Preempted
from tests.builders import make_prompt
from tests.preemption.stage import Stage, chat
from tests.runtime.clients import Client

pytestmark = pytest.mark.native


def family(count: int, num_prompt: int, max_new_tokens: int) -> list[Client]:
    prompt = make_prompt(num_prompt, salt=1)
    return [
        chat(
            1,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=SamplingParams(temperature=0.9, seed=5, choice=index, logprobs=True),
            index=index,
        )
        for index in range(count)
    ]


def check_different(choices: list[Client]) -> None:
    assert len({client.text for client in choices}) == len(choices)


@pytest.mark.parametrize("budget", [None, 0], ids=["swap", "recompute"])
def test_four_choices_of_a_prompt_that_fills_all_pages_but_one(
    tiny: Path, budget: int | None
) -> None:
    """212 tokens are six full pages, held once, and a seventh that each choice has of its own."""
    choices = family(4, num_prompt=212, max_new_tokens=30)
    on = Stage(tiny, 8, options={"host_budget_pages": budget})
    on.submit_all(choices)
    on.finish()
    on.check_as_alone()
    check_different(choices)
    assert on.engine.peak_pages == 8
    on.check_pressed(swaps=budget is None, replays=budget == 0)
    assert sum(client.count(Preempted) for client in choices) >= 4
    assert on.count("prompt_tokens") == 212 + 3 * 20


def test_more_choices_than_slots_queue_ahead_of_later_requests(tiny: Path) -> None:
    choices, later = family(5, num_prompt=100, max_new_tokens=30), chat(2, 40, 10)
    on = Stage(tiny, 16, num_slots=2)
    begun: list[Client] = []

    def note(who: Client) -> Callable[[Sequence[Event]], None]:
        return lambda events: begun.append(who)

    for client in (*choices, later):
        client.each = note(client)
    on.submit_all(choices)
    on.finish(later)
    on.check_as_alone()
    check_different(choices)
    firsts = [next(i for i, who in enumerate(begun) if who is client) for client in on.clients]
    assert firsts == sorted(firsts)


def test_two_choices_in_a_pool_that_holds_one_and_the_next_is_served(tiny: Path) -> None:
    choices, later = family(2, num_prompt=40, max_new_tokens=150), chat(2, 40, 40)
    on = Stage(tiny, 7)
    on.submit_all(choices)
    on.finish(later)
    on.check_as_alone()
    check_different(choices)
    assert on.engine.peak_pages == 7
    on.check_pressed(swaps=True, replays=False)
