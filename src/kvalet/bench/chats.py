"""A chat as its client sees it: text arriving over SSE, and pauses told in comments.

Speaks HTTP to any URL; knows nothing of the server's insides.
"""

import asyncio
import json
import time
from dataclasses import dataclass
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
    num_parks: int = 0
    finish_reason: str | None = None
    error: str = ""
    _parked_s: float = 0.0  # pauses that have ended
    _parked_at: float = 0.0

    def take(self, line: str) -> None:
        """Take one line of the event stream."""
        if line == ": preempted":
            self.state, self._parked_at = ChatState.PARKED, time.monotonic()
            self.num_parks += 1
        elif line == ": resumed":
            self.state = ChatState.RUNNING
            self._parked_s += time.monotonic() - self._parked_at
        elif line.startswith("data: ") and line != "data: [DONE]":
            self._take_event(json.loads(line.removeprefix("data: ")))

    def _take_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.fail(str(event["error"].get("message", event["error"])))
            return
        if usage := event.get("usage"):
            self.num_tokens = usage["completion_tokens"]
        for choice in event.get("choices", ()):
            if piece := choice["delta"].get("content"):
                self.state = ChatState.RUNNING
                self.text += piece
                self.num_pieces += 1
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def parked_s(self) -> float:
        """Seconds spent parked, a pause that lasts until now included."""
        is_parked = self.state is ChatState.PARKED
        return self._parked_s + (time.monotonic() - self._parked_at if is_parked else 0.0)

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
            async for line in response.aiter_lines():
                chat.take(line)
    except httpx.HTTPError as error:
        chat.fail(f"{type(error).__name__}: {error}")
    if chat.state is not ChatState.FAILED:
        chat.state = ChatState.DONE if chat.finish_reason else ChatState.FAILED
    return chat


async def stream_together(url: str, chats: list[Chat]) -> list[Chat]:
    """All chats at once."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        return await asyncio.gather(*(stream_chat(http, chat) for chat in chats))
