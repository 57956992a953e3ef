"""The copier: transfers beside the decode loop, one after the other, at a pace.

The engine's thread hands over work and takes news, and never waits for either. Whatever the copies
touch on the host belongs to the copier's thread. Work is done strictly in the order in which it was
handed over, so a place that is forgotten may be used again at once. Without a thread the same work
is done when it is handed over.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvalet.core.plan import AnyTransfer, HostId, TransferId
from kvalet.engine.ggml.copies import Copies
from kvalet.errors import EngineError, EngineFatal, StateFileError

PACE_PAGES: Final = 8  # a step that computes bears so many copies in memory beside it


@dataclass(frozen=True, slots=True)
class Forget:
    hosts: tuple[HostId, ...]


Work: TypeAlias = AnyTransfer | Forget


@dataclass(slots=True)
class News:
    """What became of transfers since the last look."""

    landed: list[TransferId] = field(default_factory=list[TransferId])
    failed: dict[TransferId, str] = field(default_factory=dict[TransferId, str])
    busy_s: float = 0.0


class Copier:
    def __init__(self, copies: Copies, *, asynchronous: bool) -> None:
        """Takes over `copies` and closes them."""
        self._copies = copies
        self._changed = threading.Condition()  # guards all of the following
        self._queue: deque[Work] = deque()
        self._credit: int | None = None  # cost of what may be copied now; None: no limit
        self._news = News()
        self._fatal: Exception | None = None
        self._is_closed = False
        self._since = 0.0  # the copier's own: when it became busy
        self._thread: threading.Thread | None = None
        if asynchronous:
            self._thread = threading.Thread(target=self._serve, name="kvalet-copier", daemon=True)
            self._thread.start()

    @property
    def is_asynchronous(self) -> bool:
        return self._thread is not None

    def pace(self, *, is_computing: bool) -> None:
        """A step begins. Credit that the last one left is void; when nobody computes nobody is
        disturbed, and the copier may go on as fast as it can."""
        if self._thread is None:
            return
        with self._changed:
            is_more = self._credit != PACE_PAGES  # what it waits for, should it be waiting
            self._credit = PACE_PAGES if is_computing else None
            if is_more:
                self._changed.notify()

    def start(self, work: Sequence[Work]) -> None:
        """To be done after all that was handed over before."""
        if not work:
            return
        with self._changed:
            self._queue.extend(work)
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
        self._copies.close()

    def _serve(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._do(work)
        except Exception as error:
            with self._changed:
                self._fatal = error

    def _next(self) -> Work | None:
        with self._changed:
            while self._thread is not None and not self._queue and not self._is_closed:
                self._changed.wait()
            return self._queue.popleft() if self._queue and not self._is_closed else None

    def _do(self, work: Work) -> None:
        self._since = time.perf_counter()
        if isinstance(work, Forget):
            self._copies.forget(work.hosts)
            with self._changed:
                self._count_busy()
            return
        failure: str | None = None
        try:
            with closing(self._copies.run(work)) as pages:
                for cost in pages:
                    if not self._may_copy(cost):
                        return
        except (EngineError, StateFileError) as error:
            failure = str(error)
        self._report(work.transfer_id, failure)

    def _may_copy(self, cost: int) -> bool:
        """A page of this cost; waits for the credit. False: the engine is closed."""
        with self._changed:
            self._count_busy()
            while not self._has_credit(cost) and not self._is_closed:
                self._changed.wait()
            if self._credit is not None:
                self._credit -= cost
            self._since = time.perf_counter()
            return not self._is_closed

    def _has_credit(self, cost: int) -> bool:
        return self._credit is None or self._credit >= cost

    def _report(self, transfer: TransferId, failure: str | None) -> None:
        with self._changed:
            self._count_busy()
            if failure is None:
                self._news.landed.append(transfer)
            else:
                self._news.failed[transfer] = failure

    def _count_busy(self) -> None:
        self._news.busy_s += time.perf_counter() - self._since
