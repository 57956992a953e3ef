"""A chat as its client sees it: text arriving over SSE, and pauses told in comments.

Speaks HTTP to any URL; knows nothing of the server's insides.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import dropwhile, pairwise
from typing import Any, NamedTuple

import httpx

# A parked chat is silent until its turn comes; that may take as long as another chat lasts.
TIMEOUT = httpx.Timeout(10.0, read=120.0)


class ChatState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    DONE = "done"
    FAILED = "failed"


class MomentKind(Enum):
    SENT = "sent"
    PIECE = "piece"  # an event that carried text: about one a token while the chat runs
    PREEMPTED = "preempted"
    RESUMED = "resumed"


class Moment(NamedTuple):
    kind: MomentKind
    at_s: float  # of the monotonic clock


@dataclass
class Chat:
    """One request and all that came back so far."""

    name: str
    body: dict[str, Any]
    state: ChatState = ChatState.WAITING
    text: str = ""
    num_pieces: int = 0
    num_tokens: int = 0  # what the server counted, once done
    num_prompt: int = 0  # likewise
    num_cached: int = 0  # of the prompt
    num_computed: int = 0  # of the prompt
    num_parks: int = 0  # as told by notices; once done, what the server counted
    finish_reason: str | None = None
    error: str = ""
    moments: list[Moment] = field(default_factory=list[Moment])

    def note(self, kind: MomentKind) -> None:
        """It happened now."""
        self.moments.append(Moment(kind, time.monotonic()))

    def take(self, line: str) -> None:
        """Take one line of the event stream."""
        if line == ": preempted":
            self.state = ChatState.PARKED
            self.note(MomentKind.PREEMPTED)
            self.num_parks += self.num_pieces > 0  # else it waits for its first token
        elif line == ": resumed":
            self.state = ChatState.RUNNING
            self.note(MomentKind.RESUMED)
        elif line.startswith("data: ") and line != "data: [DONE]":
            self._take_event(json.loads(line.removeprefix("data: ")))

    def _take_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.fail(str(event["error"].get("message", event["error"])))
            return
        if usage := event.get("usage"):
            self.num_tokens = usage["completion_tokens"]
            self.num_prompt = usage["prompt_tokens"]
        if timings := event.get("timings"):
            self.num_parks = timings["n_preempt"]
            self.num_cached, self.num_computed = timings["cache_n"], timings["prompt_n"]
        for choice in event.get("choices", ()):
            if piece := choice["delta"].get("content"):
                self._take_piece(piece)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_piece(self, piece: str) -> None:
        self.note(MomentKind.PIECE)
        self.state = ChatState.RUNNING
        self.text += piece
        self.num_pieces += 1

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces, pauses apart."""
        return self._seconds(MomentKind.PIECE, MomentKind.PIECE)

    @property
    def pauses_s(self) -> list[float]:
        """After its first piece, those that are over."""
        return self._seconds(MomentKind.PREEMPTED, MomentKind.RESUMED)

    def _seconds(self, first: MomentKind, then: MomentKind) -> list[float]:
        """Between moments of these kinds with none in between, from the first piece on."""
        told = dropwhile(lambda moment: moment.kind is not MomentKind.PIECE, self.moments)
        return [b.at_s - a.at_s for a, b in pairwise(told) if (a.kind, b.kind) == (first, then)]

    @property
    def first_piece_s(self) -> float:
        """From sending it to its first text; NaN without one."""
        sent_s = [moment.at_s for moment in self.moments if moment.kind is MomentKind.SENT]
        pieces_s = [moment.at_s for moment in self.moments if moment.kind is MomentKind.PIECE]
        return pieces_s[0] - sent_s[0] if sent_s and pieces_s else math.nan

    def parked_s(self) -> float:
        """Seconds spent parked, a pause that lasts until now included."""
        is_parked = self.state is ChatState.PARKED and self.num_pieces > 0
        current_s = time.monotonic() - self.moments[-1].at_s if is_parked else 0.0
        return sum(self.pauses_s) + current_s

    def fail(self, why: str) -> None:
        self.state, self.error = ChatState.FAILED, why


async def stream_chat(http: httpx.AsyncClient, chat: Chat) -> Chat:
    """Send the chat and read it to its end. A failure is a state of the chat, not an exception."""
    body = {**chat.body, "stream": True, "stream_options": {"include_usage": True}}
    chat.note(MomentKind.SENT)
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                chat.fail((await response.aread()).decode())
                return chat
            async for line in event_lines(response):
                chat.take(line)
    except httpx.HTTPError as error:
        chat.fail(f"{type(error).__name__}: {error}")
    if chat.state is not ChatState.FAILED:
        chat.state = ChatState.DONE if chat.finish_reason else ChatState.FAILED
    return chat


async def event_lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of an event stream. They end with a newline and nothing else: httpx's own lines would
    also end at a U+0085 or U+2028 in the middle of a text."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode()


async def stream_together(url: str, chats: list[Chat]) -> list[Chat]:
    """All chats at once."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        return await asyncio.gather(*(stream_chat(http, chat) for chat in chats))
