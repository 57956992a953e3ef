"""The copier: transfers beside the decode loop, one after the other, at a pace.

The engine's thread hands over work and takes news, and never waits for either. Whatever the copies
touch on the host belongs to the copier's thread. Transfers are done strictly in the order in which
they were handed over, so a place that is forgotten may be used again at once. State files take long
and nobody's next token waits for them: they are worked on while there is nothing else. Without a
thread the same work is done when it is handed over.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeAlias

from kvalet.core.plan import (
    AnyTransfer,
    Fault,
    FaultKind,
    HostId,
    StateLoad,
    StateSave,
    TransferId,
)
from kvalet.engine.base import PACE_DEBT, PACE_SHARE
from kvalet.engine.host.faultlog import FaultLog
from kvalet.engine.host.moves import Moves
from kvalet.errors import EngineError, EngineFatal, StateFileError, StateFileGone


@dataclass(frozen=True, slots=True)
class Forget:
    hosts: tuple[HostId, ...]


Work: TypeAlias = AnyTransfer | Forget


@dataclass(slots=True)
class News:
    """What became of transfers since the last look."""

    landed: list[TransferId] = field(default_factory=list[TransferId])
    failed: dict[TransferId, Fault] = field(default_factory=dict[TransferId, Fault])
    busy_s: float = 0.0


class Copier:
    def __init__(self, moves: Moves, *, asynchronous: bool) -> None:
        """Takes over `moves` and closes them."""
        self._moves = moves
        self._faults = FaultLog()
        self._changed = threading.Condition()  # guards all of the following
        self._queue: deque[Work] = deque()
        self._files: deque[StateSave | StateLoad] = deque()
        self._credit_s: float | None = None  # how long it may be busy now; None: for any time
        self._news = News()
        self._fatal: Exception | None = None
        self._is_closed = False
        self._since: float | None = None  # the copier's own: when it became busy
        self._thread: threading.Thread | None = None
        if asynchronous:
            self._thread = threading.Thread(target=self._serve, name="kvalet-copier", daemon=True)
            self._thread.start()

    @property
    def is_asynchronous(self) -> bool:
        return self._thread is not None

    def pace(self, step_s: float | None) -> None:
        """A step begins that will take about `step_s` seconds, or, None, computes nothing: then
        nobody is disturbed, and the copier may go on as fast as it can. What the last step left of
        its credit is void; what was overdrawn is owed, for a while."""
        if self._thread is None:
            return
        with self._changed:
            was_held = self._is_held
            share_s = PACE_SHARE * (step_s or 0.0)
            debt_s = max(min(0.0, self._credit_s or 0.0), -PACE_DEBT * share_s)
            self._credit_s = None if step_s is None else debt_s + share_s
            if was_held:
                self._changed.notify()

    def start(self, work: Iterable[Work]) -> None:
        with self._changed:
            for item in work:
                if isinstance(item, StateSave | StateLoad):
                    self._files.append(item)
                else:
                    self._queue.append(item)
            self._changed.notify()
        if self._thread is None:
            self._serve()

    def take(self) -> News:
        """Raises EngineFatal if copying has stopped for a reason that is no transfer's own."""
        with self._changed:
            if self._fatal is not None:
                reason = f"{type(self._fatal).__name__}: {self._fatal}"
                raise EngineFatal(f"the copier stopped: {reason}") from self._fatal
            news, self._news = self._news, News()
            return news

    def close(self) -> None:
        """Waits for the page being copied; the rest is dropped. Safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._moves.close()

    @property
    def _is_held(self) -> bool:
        return self._credit_s is not None and self._credit_s <= 0

    def _serve(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._do(work)
        except Exception as error:
            with self._changed:
                self._fatal = error

    def _next(self) -> Work | None:
        with self._changed:
            while not (self._queue or self._files or self._is_closed or self._thread is None):
                self._changed.wait()
            if self._is_closed:
                return None
            waiting = self._queue or self._files
            return waiting.popleft() if waiting else None

    def _do(self, work: Work) -> None:
        self._since = time.perf_counter()
        if isinstance(work, Forget):
            self._moves.forget(work.hosts)
            with self._changed:
                self._count_busy()
            return
        fault: Fault | None = None
        makes_way = isinstance(work, StateSave | StateLoad)
        try:
            with closing(self._moves.run(work)) as pages:
                for _ in pages:
                    if not self._wait_for_turn(makes_way=makes_way):
                        return
        except (EngineError, StateFileError) as error:
            fault = _fault_of(error)
            self._faults.note(fault.message)
        self._report(work.transfer_id, fault)

    def _wait_for_turn(self, *, makes_way: bool) -> bool:
        """Before each page: until there is credit and, for one that `makes_way`, nothing else to
        do. False: the engine is closed."""
        while (urgent := self._await_credit(makes_way=makes_way)) is not None:
            self._do(urgent)
        self._since = time.perf_counter()
        return not self._is_closed

    def _await_credit(self, *, makes_way: bool) -> Work | None:
        """What is to be done first, if anything."""
        with self._changed:
            self._count_busy()
            while self._is_held and not self._is_closed and not (makes_way and self._queue):
                self._changed.wait()
            is_first = makes_way and self._queue and not self._is_closed
            return self._queue.popleft() if is_first else None

    def _report(self, transfer: TransferId, fault: Fault | None) -> None:
        with self._changed:
            self._count_busy()
            if fault is None:
                self._news.landed.append(transfer)
            else:
                self._news.failed[transfer] = fault

    def _count_busy(self) -> None:
        if self._since is None:
            return
        busy_s = time.perf_counter() - self._since
        self._since = None
        self._news.busy_s += busy_s
        if self._credit_s is not None:
            self._credit_s -= busy_s


def _fault_of(error: EngineError | StateFileError) -> Fault:
    match error:
        case StateFileGone():
            return Fault(str(error), FaultKind.GONE)
        case StateFileError():
            return Fault(str(error), FaultKind.REFUSED)
        case _:
            return Fault(str(error))
