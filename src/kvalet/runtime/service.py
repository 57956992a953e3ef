"""The engine thread as every other thread sees it: submit, cancel, park, look, close.

Thread-safe; every call but `close` returns at once. What is wrong with a request on its face is
raised here, before anything is queued for it; whatever comes later reaches its sink.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import SeqId
from kvalet.core.request import Request
from kvalet.core.scheduler import Scheduler
from kvalet.engine.base import Engine
from kvalet.errors import Overloaded
from kvalet.runtime.calls import Call, Later
from kvalet.runtime.inbox import Cancel, Inbox, Stop, Submit
from kvalet.runtime.loop import EngineLoop
from kvalet.runtime.messages import Sink, SlotState, SlotView, Snapshot
from kvalet.runtime.record import StepRecorder
from kvalet.runtime.stream import Stream, Vocabulary

T = TypeVar("T")


class Service:
    """`on_death` is called on the engine thread with the reason if it ends without being told to;
    by then every live sequence has failed."""

    def __init__(
        self,
        engine: Engine,
        config: SchedulerConfig,
        vocabulary: Vocabulary,
        *,
        on_death: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
        check_every_step: bool = False,
        recorder: StepRecorder | None = None,
    ) -> None:
        self._config = config
        self.n_ctx = config.n_ctx
        self.num_slots = config.slots.num_slots
        self.max_queue = config.slots.max_queue
        self.fingerprint = engine.info.fingerprint  # of the state files it takes
        self.page_bytes = engine.info.page_bytes
        self._inbox = Inbox()
        self._loop = EngineLoop(
            Scheduler(config, engine.info.num_pages, engine.info.fingerprint),
            engine,
            self._inbox,
            vocabulary,
            on_end=self._forget,
            clock=clock,
            check_every_step=check_every_step,
            recorder=recorder,
        )
        self._clock = clock
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="kvalet-engine", daemon=True)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._live: dict[SeqId, SeqId] = {}  # not over yet; the first of its request

    @property
    def alive(self) -> bool:
        return self._thread.ident is not None and not self._loop.is_over

    @property
    def failure(self) -> str | None:
        """Why the engine thread ended, unless it was told to."""
        return None if self._loop.failure is None else str(self._loop.failure)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request, sink: Sink) -> SeqId:
        """Queue one sequence. Raises RequestError, ContextExceeded or Overloaded."""
        return self.submit_all([request], [sink])[0]

    def submit_all(self, requests: Sequence[Request], sinks: Sequence[Sink]) -> list[SeqId]:
        """Queue the sequences of one request, one behind the other, all or none; they count once
        against the queue. Raises as `submit` does. A queue found full only by the engine thread
        fails every one of them at its sink."""
        for request in requests:
            self._config.validate(request.prompt, request.id_slot)
        now = self._clock()
        streams = tuple(
            Stream.of(SeqId(next(self._ids)), request, sink, now)
            for request, sink in zip(requests, sinks, strict=True)
        )
        ids = [stream.seq.seq_id for stream in streams]
        with self._lock:
            if len(set(self._live.values())) >= self.num_slots + self.max_queue:
                raise Overloaded(f"{self.max_queue} requests are waiting already")
            self._inbox.put(Submit(streams))
            self._live.update((seq_id, ids[0]) for seq_id in ids)
        return ids

    def cancel(self, seq_id: SeqId) -> None:
        """End a sequence in whatever state, without a final event. Unknown ids are ignored."""
        with suppress(Overloaded):  # the thread has ended, and the sequence with it
            self._inbox.put(Cancel(seq_id))

    def park(self, slot: int, timeout_s: float, request_id: str | None = None) -> Future[SlotView]:
        """Park what runs in `slot`, or what the last request left there, until `resume` or for
        `timeout_s` seconds at most (behaviour P14). `request_id`: of the request that
        has to have the slot.

        Answered when the scheduler has accepted it; the sequence is parked in the next step. Fails
        with NotFound, Conflict, or Overloaded once the thread has ended.
        """
        return self._ask(lambda: self._loop.control.park(slot, request_id, timeout_s))

    def resume(self, slot: int, request_id: str | None = None) -> Future[SlotView]:
        """Undo `park`: back into the line, or back into the pool. Answers and fails as it does."""
        return self._ask(lambda: self._loop.control.resume(slot, request_id))

    def save(self, slot: int, path: str, request_id: str | None = None) -> Future[SlotState]:
        """Write what the last request left in idle `slot` to a state file, whole pages only.
        Answered when the file is there. Fails as `park` does, or with EngineError if the disk does.
        """
        return self._ask(lambda: self._loop.control.save(slot, request_id, path))

    def restore(
        self, slot: int, path: str, tokens: tuple[int, ...], timeout_s: float
    ) -> Future[SlotState]:
        """Read the state file at `path`, whose header says that it holds `tokens`, for idle `slot`;
        it stays parked for the next request, for `timeout_s` seconds at most. Answers and fails as
        `save` does, or with StateFileError if the file is not one to take (any more); a file that
        fails changes nothing."""
        return self._ask(lambda: self._loop.control.restore(slot, path, tokens, timeout_s))

    def erase(self, slot: int, request_id: str | None = None) -> Future[SlotState]:
        """Forget what the last request left in idle `slot`. Fails as `park` does."""
        return self._ask(lambda: self._loop.control.erase(slot, request_id))

    def snapshot(self) -> Future[Snapshot]:
        """The state at the next step boundary; fails with Overloaded once the thread has ended."""
        return self._ask(self._loop.snapshots.take)

    def _ask(self, run: Callable[[], T | Later[T]]) -> Future[T]:
        """`run` is run on the engine thread."""
        call = Call(run, Future[T]())
        try:
            self._inbox.put(call)
        except Overloaded as error:
            call.refuse(error)
        return call.answer

    def close(self, reason: str = "the server is shutting down", timeout_s: float = 1.5) -> bool:
        """Fail all live sequences with Overloaded(reason) after the step under way, end the
        thread, close the engine. False: that took longer than `timeout_s` and goes on."""
        with suppress(Overloaded):  # closed before
            self._inbox.put(Stop(reason))
        if self._thread.ident is None:
            self._loop.run()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._loop.run()
        if self.failure is not None:
            self._on_death(self.failure)

    def _forget(self, seq_id: SeqId) -> None:
        with self._lock:
            del self._live[seq_id]
