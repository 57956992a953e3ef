"""What `kvalet bench decode` makes of its runs."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import pytest
from typing_extensions import override

from kvalet.bench import decode
from kvalet.bench.chats import Chat, ChatState
from kvalet.bench.decode import HEADINGS, Decoding, rows
from kvalet.bench.target import Target
from kvalet.errors import EngineError


@dataclass(frozen=True)
class Counting(Target):
    """Counts chats that have ended, as if each were a step."""

    chats: list[Chat] = field(default_factory=list[Chat])
    looked: list[int] = field(default_factory=list[int])  # how many had ended

    @override
    async def counters(self, http: httpx.AsyncClient) -> Mapping[str, float]:
        num_ended = sum(chat.state is ChatState.DONE for chat in self.chats)
        self.looked.append(num_ended)
        names = ("n_decode_total", "tokens_predicted_total", "compute_seconds_total")
        return dict.fromkeys(names, float(num_ended))

    async def stream(self, http: httpx.AsyncClient, chat: Chat, *, lost: int) -> Chat:
        """The first chat ends once the counters were read, the others once they were read again.
        All are complete but the last `lost`."""
        self.chats.append(chat)
        chat.state, position = ChatState.RUNNING, len(self.chats)
        while len(self.looked) < min(position, 2):
            await asyncio.sleep(0.001)
        chat.state, chat.num_tokens = ChatState.DONE, 5 if position <= 4 - lost else 4
        return chat


def decoded(monkeypatch: pytest.MonkeyPatch, *, lost: int) -> Counting:
    target = Counting("http://127.0.0.1:1")
    monkeypatch.setattr(
        decode, "stream_chat", lambda http, chat: target.stream(http, chat, lost=lost)
    )
    asyncio.run(asyncio.wait_for(decode.decode(target, 4, 5), 5.0))
    return target


def test_what_is_measured_ends_with_the_first_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    target = decoded(monkeypatch, lost=0)
    assert target.looked == [0, 1]
    assert [chat.state for chat in target.chats] == [ChatState.DONE] * 4


def test_the_last_chat_must_be_complete_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="ended early"):
        decoded(monkeypatch, lost=1)


def test_a_row_for_one_and_for_four() -> None:
    found = [
        Decoding(1, tokens_per_s=90.0, step_ms=10.0, compute_ms=9.0),
        Decoding(4, tokens_per_s=150.0, step_ms=25.0, compute_ms=24.0),
        Decoding(4, tokens_per_s=160.0, step_ms=20.0, compute_ms=16.0),
        Decoding(4, tokens_per_s=140.0, step_ms=30.0, compute_ms=27.0),
    ]
    one, four = rows(found)
    assert one == ["1", "90.0 (90.0-90.0)", "10.00", "9.00", "10.0%"]
    assert four == ["4", "150.0 (140.0-160.0)", "25.00", "24.00", "10.0%"]
    assert len(one) == len(HEADINGS)
