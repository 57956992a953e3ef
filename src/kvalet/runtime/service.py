"""The engine thread as every other thread sees it: submit, cancel, look, close.

Thread-safe; every call but `close` returns at once. What is wrong with a request on its face is
raised here, before anything is queued for it; whatever comes later reaches its sink.
"""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import SeqId
from kvalet.core.scheduler import Scheduler
from kvalet.engine.base import Engine
from kvalet.errors import ContextExceeded, Overloaded, RequestError
from kvalet.runtime.inbox import Cancel, Inbox, Stop, Submit, TakeSnapshot
from kvalet.runtime.loop import EngineLoop
from kvalet.runtime.messages import Generation, Sink, Snapshot
from kvalet.runtime.stream import Stream, Vocabulary


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
    ) -> None:
        self.n_ctx = config.n_ctx
        self.num_slots = config.num_slots
        self.max_queue = config.max_queue
        self._inbox = Inbox()
        self._loop = EngineLoop(
            Scheduler(config, engine.info.num_pages, engine.info.fingerprint),
            engine,
            self._inbox,
            vocabulary,
            on_end=self._forget_one,
            clock=clock,
            check_every_step=check_every_step,
        )
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="kvalet-engine", daemon=True)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._num_live = 0  # submitted and not over

    @property
    def alive(self) -> bool:
        return self._thread.ident is not None and not self._loop.is_over

    @property
    def failure(self) -> str | None:
        """Why the engine thread ended, if nobody told it to."""
        return None if self._loop.failure is None else str(self._loop.failure)

    def start(self) -> None:
        self._thread.start()

    def submit(self, generation: Generation, sink: Sink) -> SeqId:
        """Queue one sequence. Raises RequestError, ContextExceeded or Overloaded."""
        self._validate(generation)
        seq_id = SeqId(next(self._ids))
        stream = Stream.of(seq_id, generation, sink)
        with self._lock:
            if self._num_live >= self.num_slots + self.max_queue:
                raise Overloaded(f"{self.max_queue} requests are waiting already")
            self._inbox.put(Submit(stream))
            self._num_live += 1
        return seq_id

    def cancel(self, seq_id: SeqId) -> None:
        """End a sequence in whatever state, without a final event. Unknown ids are ignored."""
        with suppress(Overloaded):  # the thread has ended, and the sequence with it
            self._inbox.put(Cancel(seq_id))

    def snapshot(self) -> Future[Snapshot]:
        """The state at the next step boundary; fails with Overloaded once the thread has ended."""
        answer: Future[Snapshot] = Future()
        try:
            self._inbox.put(TakeSnapshot(answer))
        except Overloaded as error:
            answer.set_exception(error)
        return answer

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

    def _validate(self, generation: Generation) -> None:
        if not generation.prompt:
            raise RequestError("the prompt has no tokens", "prompt")
        if len(generation.prompt) >= self.n_ctx:
            raise ContextExceeded(len(generation.prompt), self.n_ctx)
        slot = generation.id_slot
        if slot is not None and not 0 <= slot < self.num_slots:
            raise RequestError(f"there is no slot {slot}", "id_slot")

    def _forget_one(self) -> None:
        with self._lock:
            self._num_live -= 1
