"""The copier in virtual time: transfers one after the other, at the pace of the real one.

A step that computes allows a number of pages beside it; a step that computes nothing allows any.
Transfers land in the order in which they were started.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kvalet.core.plan import AnyTransfer, Direction, Transfer, TransferId
from kvalet.errors import EngineError
from kvalet.sim.costs import PACE_PAGES, CostModel

_EPSILON_S = 1e-12  # of rounding, when a page ends with the time there is


@dataclass(slots=True)
class _Flight:
    transfer_id: TransferId
    pages_left: int
    page_s: float


class VirtualCopier:
    def __init__(self, costs: CostModel) -> None:
        self.busy_s = 0.0  # since the start
        self._costs = costs
        self._queue: deque[_Flight] = deque()
        self._landed: list[TransferId] = []
        self._credit: int | None = None  # pages that may be copied now; None: any number
        self._free_at = 0.0  # when it could begin the next page

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def pace(self, now: float, *, is_computing: bool) -> None:
        """A step begins."""
        if self._credit == 0 or not self._queue:
            self._free_at = max(self._free_at, now)
        self._credit = PACE_PAGES if is_computing else None

    def start(self, transfers: Iterable[AnyTransfer], now: float) -> None:
        for transfer in transfers:
            if not isinstance(transfer, Transfer):
                raise EngineError("state files are not simulated")
            if not self._queue:
                self._free_at = max(self._free_at, now)
            is_out = transfer.direction is Direction.OUT
            page_s = self._costs.page_out_s if is_out else self._costs.page_in_s
            self._queue.append(_Flight(transfer.transfer_id, len(transfer.moves), page_s))

    def advance(self, now: float) -> None:
        """Copy what can be done until `now`."""
        while self._queue:
            flight = self._queue[0]
            count = self._num_pages(flight, now)
            flight.pages_left -= count
            self._free_at += count * flight.page_s
            self.busy_s += count * flight.page_s
            if self._credit is not None:
                self._credit -= count
            if flight.pages_left:
                return
            self._landed.append(self._queue.popleft().transfer_id)

    def finish(self, now: float) -> float:
        """Copy all there is, at once; returns when it is done."""
        self._credit, self._free_at = None, max(self._free_at, now)
        self.advance(float("inf"))
        return self._free_at

    def take_landed(self) -> tuple[TransferId, ...]:
        landed = tuple(self._landed)
        self._landed.clear()
        return landed

    def _num_pages(self, flight: _Flight, now: float) -> int:
        count = flight.pages_left
        if self._credit is not None:
            count = min(count, self._credit)
        time_s = now - self._free_at + _EPSILON_S
        return count if count * flight.page_s <= time_s else max(0, int(time_s / flight.page_s))
