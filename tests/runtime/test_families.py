"""Several sequences of one request (behaviour P11, S1): taken, refused and queued together."""

from dataclasses import replace

import pytest
from tests.builders import make_prompt
from tests.runtime.clients import Bench, Client, check_story, generation, letters, solo_tokens

from kvalet.core.plan import StepPlan
from kvalet.errors import Overloaded


def family(count: int, salt: int = 1, num_prompt: int = 70, num_tokens: int = 40) -> list[Client]:
    """Choices of one prompt; no two draw the same tokens."""
    base = generation(salt, num_prompt, max_new_tokens=num_tokens)
    return [
        Client(
            replace(
                base, index=choice, sampling=replace(base.sampling, temperature=1, choice=choice)
            )
        )
        for choice in range(count)
    ]


def check_texts(bench: Bench, clients: list[Client]) -> None:
    for client in clients:
        assert client.text == letters(solo_tokens(client.wanted, bench.n_ctx))
        check_story(client)


def test_a_family_that_overflows_slots_and_pool_finishes() -> None:
    bench = Bench(num_pages=12, num_slots=3, transfer_steps=1)
    clients = family(7, num_tokens=250)
    bench.submit_all(clients)
    bench.run()
    check_texts(bench, clients)
    assert len({client.text for client in clients}) == 7
    assert bench.scheduler.counters.n_preempt >= 1


def test_its_prompt_is_computed_once() -> None:
    bench = Bench(num_slots=2)
    clients = family(6, num_prompt=100)
    bench.submit_all(clients)
    bench.run()
    computed = [client.finished.timings.prompt_n for client in clients]
    assert computed == [100, *[100 - 96] * 5]
    check_texts(bench, clients)


def test_its_choices_stand_before_later_requests_and_hold_nothing_meanwhile() -> None:
    bench, later = Bench(num_slots=2), Client(generation(9, max_new_tokens=1))
    choices = family(5)
    ends: list[int] = []
    for number, client in enumerate([*choices, later]):
        client.each = lambda events, number=number: ends.append(number)  # type: ignore[misc]
    bench.submit_all(choices)
    bench.submit(later, 9)
    bench.run()
    first_of_later = ends.index(5)
    assert {0, 1, 2, 3, 4} == set(ends[:first_of_later])


def queue_of(max_queue: int, num_slots: int = 2) -> Bench:
    return Bench(num_slots=num_slots, options={"max_queue": max_queue})


@pytest.mark.parametrize("max_queue", [0, 1])
def test_it_counts_once_against_the_queue_however_large(max_queue: int) -> None:
    bench = queue_of(max_queue)
    families = [family(5, salt) for salt in range(1, 3 + max_queue)]
    for number, clients in enumerate(families):
        bench.submit_all(clients, 1 + 5 * number)
    bench.run()
    for clients in families[: 1 + max_queue]:
        check_texts(bench, clients)
    for client in families[-1]:  # one request too many
        assert isinstance(client.error, Overloaded)
        assert len(client.events) == 1


def test_a_single_request_waits_behind_a_family_in_a_queue_of_one() -> None:
    bench, single, late = queue_of(1), Client(generation(8)), Client(generation(9))
    choices = family(5)
    bench.submit_all(choices)
    bench.submit(single, 8)
    bench.submit(late, 9)
    bench.run()
    check_texts(bench, [*choices, single])
    assert isinstance(late.error, Overloaded)


def test_a_choice_that_is_cancelled_leaves_its_siblings_alone() -> None:
    bench, choices = Bench(num_slots=2), family(5)

    def cancel_two(plan: StepPlan) -> None:
        if plan.step == 10:
            bench.cancel(1)  # runs
            bench.cancel(4)  # queued

    bench.before_step = cancel_two
    bench.submit_all(choices)
    bench.run()
    check_texts(bench, [choices[1], choices[2], choices[4]])
    assert not choices[0].ended.is_set()
    assert choices[3].events == []


def test_one_that_is_wrong_refuses_all() -> None:
    bench, choices = Bench(), family(3)
    choices[1].wanted = replace(choices[1].wanted, prompt=make_prompt(bench.n_ctx))
    bench.submit_all(choices)
    bench.run()
    assert all("exceeds the available context" in str(client.error) for client in choices)
    assert bench.plans == []
