"""The sequences of one request, on the event loop's side of the border.

The engine thread hands events over with one `call_soon_threadsafe` per step; the reply to the
client takes them from here. A request that ends early, for whatever reason, leaves no sequence
running. Everything but the sinks runs on the event loop.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from starlette.types import Receive

from kvalet.core.plan import FinishReason, SeqId
from kvalet.core.request import Request
from kvalet.errors import ContextExceeded, KvaletError
from kvalet.runtime.messages import Event, Failed, Finished, Sink, Timings
from kvalet.runtime.service import Service

Arrival: TypeAlias = tuple[int, Event]  # the sequence's index in its request, and what happened


class ClientGone(Exception):  # an event, not an error
    """The client has closed its connection."""


class RequestHandle:
    def __init__(self, service: Service, requests: Sequence[Request]) -> None:
        """Submit `requests`. Raises what `Service.submit_all` raises, and then runs none."""
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, SeqId] = {}
        self._arrived: list[Arrival] = []
        self._news = asyncio.Event()
        self._client_gone = False
        self.num_sequences = len(requests)
        self._submit(requests)

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    async def take(self, until: float | None = None) -> list[Arrival]:
        """What has happened since the last call, in order; waits for something, but not beyond
        `until`, a time of the event loop.

        Raises ClientGone; the sequences are then cancelled already.
        """
        if not self._news.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._news.wait()
        self._news.clear()
        if self._client_gone:
            raise ClientGone
        arrived, self._arrived = self._arrived, []
        return arrived

    @contextlib.asynccontextmanager
    async def attended(self, receive: Receive) -> AsyncIterator[None]:
        """While this is open, a client that goes away ends the sequences at once (behaviour P16).
        When it closes they end in any case."""
        watch = asyncio.create_task(self._watch(receive))
        try:
            yield
        finally:
            watch.cancel()
            self.cancel()

    def fail(self, error: KvaletError) -> None:
        """End all sequences; the client is told `error`."""
        if self._running:
            self.cancel()
            self._arrived.append((0, Failed(error)))
            self._news.set()

    def cancel(self) -> None:
        """End all sequences that still run."""
        running, self._running = self._running, {}
        for seq_id in running.values():
            self._service.cancel(seq_id)

    def _submit(self, requests: Sequence[Request]) -> None:
        n_ctx = self._service.n_ctx
        for request in requests:
            if len(request.prompt) >= n_ctx:
                raise ContextExceeded(len(request.prompt), n_ctx)
        to_run = {i: request for i, request in enumerate(requests) if _has_anything_to_run(request)}
        if to_run:
            sinks = [self._sink(index) for index in to_run]
            ids = self._service.submit_all([*to_run.values()], sinks)
            self._running.update(zip(to_run, ids, strict=True))
        for index, request in enumerate(requests):
            if index not in to_run:
                self._arrived.append((index, _nothing_generated(request)))
                self._news.set()

    def _sink(self, index: int) -> Sink:
        def sink(events: Sequence[Event]) -> None:
            # A closed loop raises: the server is gone, and its clients with it.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrive, index, events)

        return sink

    def _arrive(self, index: int, events: Sequence[Event]) -> None:
        if index not in self._running:
            return  # crossed our cancel
        for event in events:
            self._arrived.append((index, event))
            if isinstance(event, Finished | Failed):
                del self._running[index]
        self._news.set()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client_gone = True
        self.cancel()
        self._news.set()


def _has_anything_to_run(request: Request) -> bool:
    """Not without a token asked for, or one to start from."""
    return request.max_new_tokens != 0 and bool(request.prompt)


def _nothing_generated(request: Request) -> Finished:
    return Finished(
        reason=FinishReason.LENGTH,
        stopping_word="",
        num_prompt_tokens=len(request.prompt),
        num_tokens=0,
        truncated=False,
        slot=-1,
        timings=Timings(0, 0, 0.0, 0, 0.0, 0, 0, 0.0),
    )
