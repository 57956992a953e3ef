"""What `kvalet bench decode` measures, and what it makes of it."""

import asyncio
from dataclasses import replace

import pytest

from kvalet.bench.chats import Chat, ChatState
from kvalet.bench.decode import WARM_UP, Decode
from kvalet.bench.loads import Session, while_all_run
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.target import at
from tests.bench.foreign import Foreign, serving
from tests.bench.streams import chat, failed, moments, played, steps

COUNTED = {"n_decode_total": 400, "tokens_predicted_total": 1200, "compute_seconds_total": 8.0}


def test_what_is_measured_ends_with_the_first_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[ChatState]] = []

    async def count(states: list[Chat]) -> None:
        looked.append([chat.state for chat in states])

    monkeypatch.setattr(Session, "begin", lambda session: count(session.chats))
    monkeypatch.setattr(Session, "end", lambda session: count(session.chats))
    long, short = pressing_chats(40, 2)
    bodies = [long, (short[0], {**short[1], "max_tokens": 10})]

    async def play() -> None:
        async with target.client() as http:
            await while_all_run(bodies)(Session(target, http))

    with serving(Foreign()) as foreign:
        target = at(foreign.url)
        asyncio.run(play())
    running, done = ChatState.RUNNING, ChatState.DONE
    assert looked == [[running, running], [running, done]]


def test_figures() -> None:
    one = played([chat("a"), chat("b")], COUNTED)
    (row,) = Decode().rows({WARM_UP: one, "2 at once": one})
    assert (row.case, row.faults) == ("2 at once", ())
    assert row.figures["tok/s"] == 120.0
    assert row.figures["step ms"] == 25.0
    assert row.figures["of it in ggml ms"] == 20.0
    assert row.figures["outside %"] == pytest.approx(20.0)


def test_of_a_server_that_does_not_count_pieces_are_taken() -> None:
    told = [*moments("sent 0"), *steps(1, 9)]
    (row,) = Decode().rows({"1 at once": played([chat("a", told)])})
    assert (row.figures["tok/s"], row.figures["step ms"], row.faults) == (1.0, None, ())


def test_what_is_over_too_soon_or_failed_is_no_speed() -> None:
    for chats in ([chat("a", moments("sent 0, piece 1"))], [failed("a")]):
        (row,) = Decode().rows({"1 at once": replace(played(chats), wall_s=None)})
        assert row.figures["tok/s"] is None
        assert row.faults
