"""What a seed draws."""

import itertools
from dataclasses import replace

import pytest

from kvalet.sim.workloads import ARRIVALS, WORKLOADS, Lengths, Request, draw

LENGTHS = Lengths(700, 2048)


def _draw(workload: str, arrivals: str = "together", seed: int = 3) -> tuple[Request, ...]:
    return draw(workload, arrivals, 40, 2.0, LENGTHS, seed)


@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_seed_draws_the_same_each_time_and_another_does_not(workload: str, arrivals: str) -> None:
    assert _draw(workload, arrivals) == _draw(workload, arrivals)
    assert _draw(workload, arrivals) != _draw(workload, arrivals, seed=4)


@pytest.mark.parametrize("num_tokens", [1, 700, 5000])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_everything_fits_into_the_context(workload: str, num_tokens: int) -> None:
    for n_ctx in (64, 2048):
        for request in draw(workload, "together", 40, 2.0, Lengths(num_tokens, n_ctx), 1):
            assert request.num_prompt >= 1
            assert 1 <= request.num_output <= request.max_tokens
            assert request.num_prompt + request.max_tokens <= n_ctx


def test_measured_chats_are_like_the_demo_s() -> None:
    for request in _draw("measured"):
        assert 150 <= request.num_prompt <= 170
        assert 595 <= request.num_output <= 805
        assert request.max_tokens == request.num_output


def test_heavy_chats_are_many_short_ones_and_a_few_long_ones() -> None:
    outputs = sorted(request.num_output for request in _draw("heavy"))
    assert outputs[len(outputs) // 2] < 500
    assert outputs[-1] > 1000
    assert len({request.max_tokens for request in _draw("heavy")}) > 1


def test_agents_turns_hold_all_that_came_before() -> None:
    by_agent: dict[int, list[Request]] = {}
    for request in _draw("agents"):
        by_agent.setdefault(request.conversation, []).append(request)
    assert len(by_agent) == 40
    assert max(map(len, by_agent.values())) > 3
    for turns in by_agent.values():
        for before, after in itertools.pairwise(turns):
            assert after.num_prompt > before.num_prompt + before.num_output
            assert after.pause_s > 0


def test_arrivals() -> None:
    assert {request.arrival_s for request in _draw("measured", "together")} == {0.0}
    staggered = [request.arrival_s for request in _draw("measured", "staggered")]
    assert staggered == [2.0 * index for index in range(40)]
    poisson = [request.arrival_s for request in _draw("measured", "poisson")]
    assert poisson[0] == 0.0
    assert poisson == sorted(poisson)
    assert 40 < poisson[-1] < 160  # 78 on average


def test_priorities_go_by_turns_and_change_nothing_else() -> None:
    alike = draw("agents", "poisson", 9, 2.0, LENGTHS, 3)
    tiers = draw("agents", "poisson", 9, 2.0, LENGTHS, 3, num_priorities=3)
    assert {request.priority for request in alike} == {0}
    assert all(request.priority == request.conversation % 3 for request in tiers)
    assert tuple(replace(request, priority=0) for request in tiers) == alike
