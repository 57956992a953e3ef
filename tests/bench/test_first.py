"""That rounds, and runs that begin with another number, send other prompts."""

from collections.abc import Callable

import pytest

from kvalet.bench import exact, latency, pressure
from kvalet.bench.target import Target, Where, at
from tests.bench.foreign import Foreign, serving


def press(target: Target, where: Where, number: int) -> None:
    options = pressure.Options(where, num_chats=2, num_tokens=2)
    pressure.measure_at(target, options, number)


def wait(target: Target, where: Where, number: int) -> None:
    latency.measure(target, latency.Options(where, rates=(100.0, 200.0), num_requests=2), number)


def compare(target: Target, where: Where, number: int) -> None:
    exact.rows_at(target, exact.Options(where, num_tokens=2), number)


@pytest.mark.parametrize(("measure", "count"), [(press, 2), (wait, 4), (compare, 4)])
def test_no_prompt_comes_again(measure: Callable[[Target, Where, int], None], count: int) -> None:
    """`count`: of prompts in a round."""
    found: set[str] = set()
    with serving(Foreign()) as foreign:
        target = at(foreign.url)
        for first, number in ((0, 0), (0, 1), (1000, 0), (1000, 1)):
            foreign.bodies.clear()
            measure(target, Where(url=foreign.url, first=first), number)
            openings = {body["messages"][0]["content"] for body in foreign.bodies}
            assert len(openings) == count
            assert not openings & found
            found |= openings
