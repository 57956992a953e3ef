"""From a request's events to an HTTP response: a stream, or one body, as its dialect writes it.

A stream's headers wait for its first event, so that what fails before it is a proper error. After
the first byte an error is an event of its own and ends the stream.
"""

import asyncio

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from kvalet.runtime.messages import (
    Delta,
    Event,
    Failed,
    Finished,
    Part,
    Preempted,
    Resumed,
    TokenInfo,
)
from kvalet.server.dialects.dialect import Answer, Choice
from kvalet.server.errors import Tell, report_of
from kvalet.server.handle import Arrival, ClientGone, RequestHandle
from kvalet.server.notices import Cadence, Notices


class StreamedReply(Response):
    """Streams a request's answer. An ASGI application of its own: per event it costs one `send`."""

    def __init__(self, handle: RequestHandle, answer: Answer, cadence: Cadence, tell: Tell) -> None:
        """`tell`: of an error that comes before anything else."""
        self._handle = handle
        self._answer = answer
        self._comment = answer.framing.comment
        self._tell = tell
        self._now = asyncio.get_running_loop().time
        self._notices = Notices(handle.num_sequences, cadence, self._now())
        self._unfinished = handle.num_sequences
        self.background = None

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._handle.attended(receive):
                arrived = await self._handle.take(self._notices.next_at())
                if (refusal := _refusal(arrived)) is not None:
                    await self._tell(scope, refusal)(scope, receive, send)
                else:
                    await self._stream(arrived, send)
        except ClientGone:
            pass

    async def _stream(self, arrived: list[Arrival], send: Send) -> None:
        headers = [
            (b"content-type", self._answer.framing.media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opening = self._answer.begin()
        while True:
            body, opening = opening + self._body(arrived, self._now()), b""
            more = self._unfinished > 0
            if body or not more:
                await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return
            arrived = await self._handle.take(self._notices.next_at())

    def _body(self, arrived: list[Arrival], now: float) -> bytes:
        """What has happened, and the comments that are due."""
        body = b"".join([self._written(index, event, now) for index, event in arrived])
        if not self._unfinished:
            return body
        if body:
            self._notices.wrote(now)
        return body + b"".join(map(self._comment, self._notices.due(now)))

    def _written(self, index: int, event: Event, now: float) -> bytes:
        if not self._unfinished:
            return b""  # came together with a failure
        match event:
            case Delta():
                return self._answer.delta(index, event)
            case Finished():
                return self._close(index, event)
            case Preempted():
                return self._comment(self._notices.preempted(index, now))
            case Resumed():
                return self._comment(self._notices.resumed(index))
            case Failed():
                self._unfinished = 0
                return self._answer.error(report_of(event.error))

    def _close(self, index: int, finished: Finished) -> bytes:
        self._unfinished -= 1
        self._notices.ended(index)
        closing = self._answer.close(index, finished)
        return closing if self._unfinished else closing + self._answer.end()


def _refusal(arrived: list[Arrival]) -> Exception | None:
    """The error that comes before anything else but notices: its status can still be told."""
    for _, event in arrived:
        if isinstance(event, Failed):
            return event.error
        if isinstance(event, Delta | Finished):
            return None
    return None


async def whole_reply(handle: RequestHandle, answer: Answer, receive: Receive) -> Response:
    """Wait for all of a request's sequences. Raises the error one of them fails with, ClientGone
    if its client has gone."""
    async with handle.attended(receive):
        choices = await _collect(handle)
    return Response(orjson.dumps(answer.whole(choices)), media_type="application/json")


async def _collect(handle: RequestHandle) -> list[Choice]:
    parts = [list[Part]() for _ in range(handle.num_sequences)]
    tokens = [list[TokenInfo]() for _ in range(handle.num_sequences)]
    finished: dict[int, Finished] = {}
    while len(finished) < handle.num_sequences:
        for index, event in await handle.take():
            match event:
                case Delta():
                    parts[index] += event.parts
                    tokens[index] += event.tokens
                case Finished():
                    finished[index] = event
                case Failed():
                    raise event.error
                case Preempted() | Resumed():
                    pass
    return [
        Choice(finished[index], parts[index], tokens[index])
        for index in range(handle.num_sequences)
    ]
