"""What `kvalet bench latency` asks, and what it makes of the answers."""

import itertools
import statistics

import pytest

from kvalet.bench.chats import Chat
from kvalet.bench.latency import TOKENS, Latency, arrivals
from tests.bench.streams import chat, failed, moments, played


def answered(told: str) -> Chat:
    pieces = told.count("piece")
    return chat("", moments(told), tokens=pieces, of=pieces)


def test_figures() -> None:
    chats = [
        answered("sent 0, piece 0.5, piece 0.6"),
        answered("sent 1, piece 2.5, piece 2.6"),  # too late
        answered("sent 2, piece 2.1, preempted 2.15, resumed 2.5, piece 2.6"),  # too slow
        failed(""),
    ]
    (row,) = Latency(max_first=1.0, max_gap=0.1).rows({"0.5 a second": played(chats)})
    told = row.figures
    assert [told[name] for name in ("chats", "complete", "failed")] == [4, 3, 1]
    firsts = [told[f"first token {name} ms"] for name in ("p50", "p95")]
    assert firsts == pytest.approx([500.0, 1500.0])
    assert [told[f"gap {name} ms"] for name in ("p50", "p99")] == pytest.approx([100.0, 500.0])
    assert (told["goodput/s"], told["tok/s"], told["parks"]) == (0.1, 0.6, None)


def test_what_was_not_answered_took_no_time() -> None:
    silent = chat("", moments("sent 0"))
    for chats, num_complete in (([failed("")], 0), ([silent], 1)):
        (row,) = Latency().rows({"1 a second": played(chats, {"n_preempt_total": 0})})
        assert row.figures["complete"] == num_complete
        assert row.figures["first token p50 ms"] is row.figures["gap p99 ms"] is None
        assert (row.figures["goodput/s"], row.figures["parks"]) == (0.0, 0)


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
