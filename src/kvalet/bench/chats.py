"""A chat as its client sees it: text arriving over SSE, and pauses told in comments.

Speaks HTTP to any URL; knows nothing of the server's insides. Of an event it reads what is declared
here; anything else in it is ignored, and what has another shape is a failure of the chat.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import dropwhile, pairwise
from typing import Any, NamedTuple

import httpx
from pydantic import BaseModel, ValidationError

from kvalet.complaint import first_complaint

# A parked chat is silent until its turn comes; that may take as long as another chat lasts.
TIMEOUT = httpx.Timeout(10.0, read=120.0)
MAX_ERROR = 300  # characters of what a server says


class Delta(BaseModel):
    content: str | None = None


class Choice(BaseModel):
    delta: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(BaseModel):
    cached_tokens: int | None = None


class Usage(BaseModel):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Timings(BaseModel):
    """kvalet's and llama.cpp's."""

    n_preempt: int | None = None
    cache_n: int | None = None  # prompt tokens found
    prompt_n: int | None = None  # prompt tokens computed


class Event(BaseModel):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: Any = None


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
    num_tokens: int = 0  # once done: what the server counted, or pieces if it does not count
    num_prompt: int = 0  # what the server counted, once done
    num_cached: int = 0  # of the prompt
    num_computed: int = 0  # of the prompt
    num_parks: int = 0  # as told by notices; once done, what the server counted
    finish_reason: str | None = None
    is_counted: bool = False  # the server said how many tokens there are
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
        elif line.startswith("data:") and line.removeprefix("data:").strip() != "[DONE]":
            self._take_event(Event.model_validate_json(line.removeprefix("data:")))

    def _take_event(self, event: Event) -> None:
        if event.error is not None:
            has_message = isinstance(event.error, dict) and "message" in event.error
            self.fail(str(event.error["message"] if has_message else event.error))
            return
        if event.usage:
            self._take_usage(event.usage)
        if event.timings:
            told = event.timings
            self.num_parks = _either(told.n_preempt, self.num_parks)
            self.num_cached = _either(told.cache_n, self.num_cached)
            self.num_computed = _either(told.prompt_n, self.num_computed)
        for choice in event.choices or ():
            if choice.delta and choice.delta.content:
                self._take_piece(choice.delta.content)
            self.finish_reason = choice.finish_reason or self.finish_reason

    def _take_usage(self, usage: Usage) -> None:
        self.is_counted = usage.completion_tokens is not None
        self.num_tokens = usage.completion_tokens or 0
        self.num_prompt = usage.prompt_tokens or 0
        if usage.prompt_tokens_details:
            self.num_cached = usage.prompt_tokens_details.cached_tokens or 0

    def _take_piece(self, piece: str) -> None:
        self.note(MomentKind.PIECE)
        self.state = ChatState.RUNNING
        self.text += piece
        self.num_pieces += 1

    def times(self, kind: MomentKind) -> list[float]:
        return [moment.at_s for moment in self.moments if moment.kind is kind]

    @property
    def first_piece_s(self) -> float | None:
        """From sending it to its first text; None without one."""
        pieces = self.times(MomentKind.PIECE)
        return pieces[0] - self.moments[0].at_s if pieces else None

    @property
    def waits_s(self) -> list[float]:
        """Between pieces, pauses included."""
        return [b - a for a, b in pairwise(self.times(MomentKind.PIECE))]

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

    def parked_s(self) -> float:
        """Seconds spent parked, a pause that lasts until now included."""
        is_parked = self.state is ChatState.PARKED and self.num_pieces > 0
        current_s = time.monotonic() - self.moments[-1].at_s if is_parked else 0.0
        return sum(self.pauses_s) + current_s

    @property
    def is_complete(self) -> bool:
        return self.state is ChatState.DONE and not self.has_stopped_early

    @property
    def has_stopped_early(self) -> bool:
        """It ended without an error, but with fewer tokens than it asked for, where it was not to
        end by itself. A server that does not count is taken at its word."""
        if self.state is not ChatState.DONE:
            return False
        if self.finish_reason == "stop" and not self.body.get("ignore_eos"):
            return False
        if self.is_counted:
            return bool(self.num_tokens != self.body["max_tokens"])
        return self.finish_reason != "length"

    @property
    def problem(self) -> str:
        """Of a chat that has ended, why it is not complete; empty if it is."""
        if self.state is ChatState.FAILED:
            return f"failed: {self.error[:MAX_ERROR]}"
        return f"stopped early ({self.finish_reason})" if self.has_stopped_early else ""

    def fail(self, why: str) -> None:
        self.state, self.error = ChatState.FAILED, why

    def end(self) -> None:
        """Its stream is over. Of a server that does not count, tokens are taken to be pieces."""
        if not self.is_counted:
            self.num_tokens = self.num_pieces
        if self.state is ChatState.FAILED:
            return
        if not self.finish_reason:
            self.fail("the stream ended early")
            return
        self.state = ChatState.DONE


def _either(told: int | None, before: int) -> int:
    return before if told is None else told


async def stream_chat(http: httpx.AsyncClient, chat: Chat) -> Chat:
    """Send the chat and read it to its end. A failure is a state of the chat, not an exception.
    What is None in its body is not sent."""
    body = {"stream_options": {"include_usage": True}, **chat.body, "stream": True}
    sent = {name: value for name, value in body.items() if value is not None}
    chat.note(MomentKind.SENT)
    try:
        async with http.stream("POST", "/v1/chat/completions", json=sent) as response:
            if response.is_error:
                chat.fail((await response.aread()).decode(errors="replace"))
                return chat
            async for line in event_lines(response):
                chat.take(line)
    except httpx.HTTPError as error:
        chat.fail(f"{type(error).__name__}: {error}")
    except ValidationError as error:
        chat.fail(f"no event of a chat completion: {first_complaint(error)}")
    except UnicodeDecodeError:
        chat.fail("no event of a chat completion: not UTF-8")
    chat.end()
    return chat


async def event_lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of an event stream. They end with a newline, with or without a carriage return, and
    nothing else: httpx's own lines would also end at a U+0085 or U+2028 in the middle of a text."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
