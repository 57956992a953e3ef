"""What `kvalet bench latency` asks, and what it makes of the answers."""

import itertools
import json
import statistics
from dataclasses import asdict

import pytest

from kvalet.bench.chats import Chat, ChatState
from kvalet.bench.latency import (
    HEADINGS,
    TOKENS,
    Figures,
    Options,
    Sweep,
    arrivals,
    figures_of,
)
from tests.bench.streams import moments

OPTIONS = Options(max_first_s=1.0, max_gap_s=0.1)


def answered(told: str, *, is_complete: bool = True, num_parks: int = 0) -> Chat:
    found = moments(told)
    state = ChatState.DONE if is_complete else ChatState.FAILED
    pieces = told.count("piece")
    return Chat(
        *("a", {"max_tokens": pieces}, state, "text"),
        num_pieces=pieces,
        num_tokens=pieces,
        num_parks=num_parks,
        moments=found,
    )


def figures() -> Figures:
    chats = [
        answered("sent 0, piece 0.5, piece 0.6"),
        answered("sent 1, piece 2.5, piece 2.6"),  # too late
        answered("sent 2, piece 2.1, preempted 2.15, resumed 2.5, piece 2.6"),  # too slow
        answered("sent 3, piece 3.1", is_complete=False),
    ]
    return figures_of(OPTIONS, 0.5, chats, wall_s=4.0, parks=None)


def test_figures() -> None:
    found = figures()
    assert (found.requests, found.completed, found.goodput) == (4, 3, 0.25)
    assert (found.first_p50_ms, found.first_p95_ms) == pytest.approx((500.0, 1500.0))
    assert (found.gap_p50_ms, found.gap_p99_ms) == pytest.approx((100.0, 500.0))
    assert found.tokens_per_s == 6 / 4
    assert found.cells()[1:3] == ("3/4", "1")
    assert found.cells()[-1] == "-"
    assert len(found.cells()) == len(HEADINGS)


def test_what_was_not_answered_took_no_time() -> None:
    failed = [answered("sent 0, piece 0.1", is_complete=False)]
    found = figures_of(OPTIONS, 0.5, failed, wall_s=4.0, parks=0)
    assert found.cells()[3:5] == ("- / -", "- / -")
    assert found.comparable() == {"completed": 0, "goodput/s": 0.0}
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["first_p50_ms"] is None


def test_what_an_answer_without_text_took_is_unknown() -> None:
    silent = Chat("a", {"max_tokens": 1}, ChatState.DONE, num_tokens=1, moments=moments("sent 0"))
    found = figures_of(OPTIONS, 0.5, [silent], wall_s=4.0, parks=0)
    assert (found.completed, found.first_p50_ms, found.goodput) == (1, None, 0.0)


def test_a_sweep_is_right_if_everybody_was_answered() -> None:
    sweep = Sweep([figures()])
    assert not sweep.is_right
    assert sweep.comparable()["0.5/s: goodput/s"] == 0.25


def test_arrivals_are_the_same_for_a_seed_and_keep_their_pace() -> None:
    once = list(arrivals(7, 400, 1.0))
    assert list(arrivals(7, 400, 1.0)) == once
    assert list(arrivals(8, 400, 1.0)) != once
    fast = list(arrivals(7, 400, 4.0))
    assert [a.at_s for a in fast] == pytest.approx([a.at_s / 4 for a in once])
    assert [a.body for a in fast] == [a.body for a in once]
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(once)]
    assert statistics.fmean(gaps) == pytest.approx(1.0, rel=0.15)
    assert statistics.stdev(gaps) == pytest.approx(1.0, rel=0.2)  # as of an exponential


def test_lengths_are_mixed_and_openings_differ() -> None:
    first, second = list(arrivals(7, 200, 1.0)), list(arrivals(7, 200, 1.0, first=200))
    bodies = [arrival.body for arrival in [*first, *second]]
    tokens = [body["max_tokens"] for body in bodies]
    assert TOKENS[0] <= min(tokens) < 12
    assert 100 < max(tokens) <= TOKENS[1]
    words = [len(body["messages"][0]["content"].split()) for body in bodies]
    assert min(words) < 20 < 200 < max(words)
    openings = {body["messages"][0]["content"].split(".")[0] for body in bodies}
    assert len(openings) == 400
    assert tokens[:200] == tokens[200:]
