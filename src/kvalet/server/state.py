"""The state of the HTTP side: the model once it is loaded, what is being served, whether we close.

Lives on the event loop. While there is no model, and after the engine has died or a shutdown has
begun, every request is turned away here, in one place (behaviour C5). While draining, what is
being served goes on, orders of operators that were accepted too, and operators still look; nothing
new begins.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakSet

from kvalet.errors import Overloaded
from kvalet.server.dialects.dialect import Defaults, Job
from kvalet.server.handle import RequestHandle
from kvalet.server.model import ServedModel
from kvalet.server.settings import ServerSettings

T = TypeVar("T")

LOADING = "Loading model"  # llama.cpp's words
NUM_WORKERS = 2  # so that a long prompt being tokenised does not hold up a short one


class AppState:
    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.defaults = Defaults(settings.max_new_tokens)
        self.opened_at = 0  # Unix seconds
        self._model: ServedModel | None = None
        self._draining: Overloaded | None = None
        self._closing: Overloaded | None = None
        self._handles: WeakSet[RequestHandle] = WeakSet()
        self._pending: set[asyncio.Future[Any]] = set()  # what requests wait for, on the event loop
        self._workers = ThreadPoolExecutor(NUM_WORKERS, "kvalet-http")
        self._file_worker = ThreadPoolExecutor(1, "kvalet-files")

    @property
    def model(self) -> ServedModel:
        """The model, to look at. Raises Overloaded when there is none, or none any more."""
        if self._closing:
            raise self._closing
        if self._model is None:
            raise Overloaded(LOADING)
        if not self._model.service.alive:
            raise Overloaded(engine_stopped(self._model))
        return self._model

    @property
    def serving(self) -> ServedModel:
        """The model, to begin something with. Raises Overloaded."""
        model = self.model
        if self._draining:
            raise self._draining
        return model

    @property
    def status(self) -> str:
        """`ok`, or why nothing can be begun."""
        try:
            self.serving  # noqa: B018  # raises what is wrong
        except Overloaded as error:
            return str(error)
        return "ok"

    @property
    def model_name(self) -> str | None:
        return None if self._model is None else self._model.name

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served, and nothing is done for an operator."""
        return not self._pending and not any(handle.is_running for handle in self._handles)

    def open(self, model: ServedModel) -> None:
        """Begin to serve."""
        self._model = model
        self.opened_at = int(datetime.now(UTC).timestamp())

    def drain(self, reason: Overloaded) -> None:
        """Begin nothing new from now on."""
        self._draining = reason

    def close(self, reason: Overloaded) -> None:
        """Turn all requests away from now on, those being served included."""
        self._closing = reason
        for handle in list(self._handles):
            handle.fail(reason)
        for work in list(self._pending):
            work.cancel()

    def submit(self, job: Job) -> RequestHandle:
        handle = RequestHandle(self.serving.service, job.requests)
        self._handles.add(handle)
        return handle

    async def attend(self, work: Awaitable[T]) -> T:
        """What comes of `work`, which a drain waits for. Raises Overloaded, and cancels it, as soon
        as all requests are turned away."""
        pending = asyncio.ensure_future(work)
        self._pending.add(pending)
        if self._closing:
            pending.cancel()
        try:
            await asyncio.wait((pending,))
        finally:
            self._pending.discard(pending)
            pending.cancel()  # changes nothing, unless the caller is cancelled
        if pending.cancelled():
            raise self._closing or asyncio.CancelledError
        return pending.result()

    async def work(self, task: Callable[[], T]) -> T:
        """Run `task` on a worker thread, so that it does not hold up streams."""
        return await self._run_on(self._workers, task)

    async def work_on_file(self, task: Callable[[], T]) -> T:
        """Run `task` on the thread of files, so that a slow one does not hold up requests."""
        return await self._run_on(self._file_worker, task)

    async def _run_on(self, workers: ThreadPoolExecutor, task: Callable[[], T]) -> T:
        return await self.attend(asyncio.get_running_loop().run_in_executor(workers, task))

    def shut(self) -> None:
        """Wait for the worker threads to end."""
        for workers in (self._workers, self._file_worker):
            workers.shutdown(wait=True, cancel_futures=True)


def engine_stopped(model: ServedModel) -> str:
    return f"the engine has stopped: {model.service.failure or 'no reason given'}"
