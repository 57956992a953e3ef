"""A chat as its client sees it: text arriving over SSE, and pauses told in comments.

Speaks HTTP to any URL; knows nothing of the server's insides.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import httpx

# A parked chat is silent until its turn comes; that may take as long as another chat lasts.
TIMEOUT = httpx.Timeout(10.0, read=120.0)


class ChatState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Chat:
    """One request and all that came back so far."""

    name: str
    body: dict[str, Any]
    state: ChatState = ChatState.WAITING
    text: str = ""
    num_pieces: int = 0  # events that carried text: about one a token while the chat runs
    num_tokens: int = 0  # what the server counted, once done
    num_parks: int = 0  # as told by notices; once done, what the server counted
    finish_reason: str | None = None
    error: str = ""
    pauses_s: list[float] = field(default_factory=list[float])  # after its first text, ended
    gaps_s: list[float] = field(default_factory=list[float])  # between pieces, pauses apart
    _paused_at: float = 0.0
    _piece_at: float | None = None  # None: nothing before the next piece to measure a gap from

    def take(self, line: str) -> None:
        """Take one line of the event stream."""
        if line == ": preempted":
            self.state, self._paused_at, self._piece_at = ChatState.PARKED, time.monotonic(), None
            self.num_parks += self.num_pieces > 0  # else it waits for its first token
        elif line == ": resumed":
            self.state = ChatState.RUNNING
            if self.num_pieces:
                self.pauses_s.append(time.monotonic() - self._paused_at)
        elif line.startswith("data: ") and line != "data: [DONE]":
            self._take_event(json.loads(line.removeprefix("data: ")))

    def _take_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.fail(str(event["error"].get("message", event["error"])))
            return
        if usage := event.get("usage"):
            self.num_tokens = usage["completion_tokens"]
        if timings := event.get("timings"):
            self.num_parks = timings["n_preempt"]
        for choice in event.get("choices", ()):
            if piece := choice["delta"].get("content"):
                self._take_piece(piece)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_piece(self, piece: str) -> None:
        now = time.monotonic()
        if self._piece_at is not None:
            self.gaps_s.append(now - self._piece_at)
        self._piece_at = now
        self.state = ChatState.RUNNING
        self.text += piece
        self.num_pieces += 1

    def parked_s(self) -> float:
        """Seconds spent parked, a pause that lasts until now included."""
        is_parked = self.state is ChatState.PARKED and self.num_pieces > 0
        current_s = time.monotonic() - self._paused_at if is_parked else 0.0
        return sum(self.pauses_s) + current_s

    def fail(self, why: str) -> None:
        self.state, self.error = ChatState.FAILED, why


async def stream_chat(http: httpx.AsyncClient, chat: Chat) -> Chat:
    """Send the chat and read it to its end. A failure is a state of the chat, not an exception."""
    body = {**chat.body, "stream": True, "stream_options": {"include_usage": True}}
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
