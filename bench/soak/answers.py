"""What came back for one request of a soak, read as long as its client would, and whether that was
in order.

A stream is checked line by line: notices alternate, and no choice gets text while it is parked. At
the end, every choice must have as many tokens as were asked for, or as the context holds.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import httpx
from bench.soak.requests import Dialect, Ending, Request

from kvalet.bench.chats import event_lines


class Fate(Enum):
    DONE = "done"
    LEFT = "left"  # by its client
    REFUSED = "refused"  # the queue was full
    LOST = "lost"


class Disorder(Exception):  # what was wrong with an answer
    pass


class Part(NamedTuple):
    """Of one choice: some text; and what it came to, if that was the last."""

    choice: int
    text: str
    num_tokens: int | None = None
    num_prompt: int = 0


@dataclass(slots=True)
class Answer:
    request: Request
    fate: Fate = Fate.LOST
    why: str = ""
    texts: dict[int, str] = field(default_factory=dict[int, str])
    num_tokens: dict[int, int] = field(default_factory=dict[int, int])
    num_prompt: int = 0
    _parked: set[int] = field(default_factory=set[int])

    def take_line(self, line: str) -> None:
        """A line of an event stream. Raises Disorder."""
        if line.startswith(": "):
            self._take_comment(line.removeprefix(": "))
        elif line.startswith("data: ") and line != "data: [DONE]":
            self.take_body(json.loads(line.removeprefix("data: ")), is_whole=False)

    def take_body(self, body: Any, *, is_whole: bool) -> None:  # noqa: ANN401  # any JSON
        """An event's, or the whole answer. Raises Disorder."""
        if "error" in body:
            raise Disorder(f"error event: {body['error']}")
        for part in _parts(self.request.dialect, body, is_whole):
            if part.choice in self._parked or part.choice in self.num_tokens:
                raise Disorder(f"text of choice {part.choice} while it is parked or after its end")
            self.texts[part.choice] = self.texts.get(part.choice, "") + part.text
            if part.num_tokens is not None:
                self.num_tokens[part.choice] = part.num_tokens
                self.num_prompt = part.num_prompt

    def _take_comment(self, comment: str) -> None:
        word, _, number = comment.partition(" ")
        if word == "ping":
            return
        index, is_park = int(number or 0), word == "preempted"
        if word not in ("preempted", "resumed", "preempt-keepalive"):
            raise Disorder(f"unknown notice: {comment}")
        if (index in self._parked) is is_park or index in self.num_tokens:
            raise Disorder(f"notice out of order: {comment}")
        if is_park:
            self._parked.add(index)
        elif word == "resumed":
            self._parked.remove(index)

    def num_expected(self, n_ctx: int, *, endless: bool) -> int:
        """Tokens of each choice, unless a stop string ends it."""
        limit, room = int(self.request.body["n_predict"]), n_ctx - self.num_prompt
        return limit if endless or 0 <= limit <= room else room

    def check_complete(self, n_ctx: int, *, endless: bool) -> None:
        """Raises Disorder."""
        if set(self.num_tokens) != set(range(self.request.num_choices)):
            raise Disorder(f"only choices {set(self.num_tokens)} have ended")
        expected = self.num_expected(n_ctx, endless=endless)
        least = 1 if "stop" in self.request.body else expected
        if not all(least <= count <= expected for count in self.num_tokens.values()):
            raise Disorder(f"{self.num_tokens} tokens by choice, not {expected}")
        if self._parked:
            raise Disorder(f"choices {self._parked} were never resumed")

    def request_alone(self, n_ctx: int, *, endless: bool) -> Request:
        """The same, to be read to its end, and to end where it did in a larger context."""
        limit = self.num_expected(n_ctx, endless=endless)
        body = {**self.request.body, "n_predict": limit, "cache_prompt": False}
        body.pop("id_slot", None)
        return replace(self.request, body=body, ending=Ending.READS_ALL)


def _parts(dialect: Dialect, body: Any, is_whole: bool) -> Iterator[Part]:  # noqa: ANN401
    if dialect is Dialect.NATIVE:
        for answer in body if isinstance(body, list) else [body]:
            counts = (answer["tokens_predicted"], answer["tokens_evaluated"])
            yield Part(answer["index"], answer["content"], *(counts if answer["stop"] else ()))
        return
    timings, usage, choices = body.get("timings", {}), body.get("usage"), body["choices"]
    for choice in choices:
        told = choice.get("message") or choice.get("delta")
        text = str((choice["text"] if told is None else told.get("content")) or "")
        end: tuple[int, ...] = ()
        if is_whole:  # all choices are equally long without a stop
            end = (usage["completion_tokens"] // len(choices), usage["prompt_tokens"])
        elif choice["finish_reason"]:
            end = (timings["predicted_n"], timings["prompt_n"] + timings["cache_n"])
        yield Part(choice["index"], text, *end)


async def ask(http: httpx.AsyncClient, request: Request, n_ctx: int, *, endless: bool) -> Answer:
    """Send it and read to its end, whatever that is; never raises."""
    answer = Answer(request)
    patience_s = None if request.ending is Ending.READS_ALL else request.patience_s
    try:
        async with asyncio.timeout(patience_s):
            if request.ending is Ending.BREAKS:
                await _break(http.base_url.host, http.base_url.port or 80, request)
            await _read(http, answer)
        if answer.fate is Fate.DONE:
            answer.check_complete(n_ctx, endless=endless)
    except TimeoutError:
        answer.fate = Fate.LEFT
    except (Disorder, httpx.HTTPError, OSError, ValueError, KeyError) as error:
        answer.fate, answer.why = Fate.LOST, f"{type(error).__name__}: {error}"
    return answer


async def _read(http: httpx.AsyncClient, answer: Answer) -> None:
    request = answer.request
    async with http.stream("POST", request.dialect.value, json=request.body) as response:
        if response.status_code == 503 and "retry-after" in response.headers:
            answer.fate = Fate.REFUSED
        elif response.status_code != 200:
            answer.why = (await response.aread()).decode()
        elif request.body["stream"]:
            async for line in event_lines(response):
                answer.take_line(line)
            answer.fate = Fate.DONE
        else:
            answer.take_body(json.loads(await response.aread()), is_whole=True)
            answer.fate = Fate.DONE


async def _break(host: str, port: int, request: Request) -> None:
    """Send it, read for a while, then reset the connection. Ends by TimeoutError."""
    reader, writer = await asyncio.open_connection(host, port)
    body = json.dumps(request.body).encode()
    head = (
        f"POST {request.dialect.value} HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        while await reader.read(4096):
            pass
        raise TimeoutError  # answered within its patience
    finally:
        connection = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
