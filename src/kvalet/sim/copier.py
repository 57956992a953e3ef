"""The copier in virtual time: transfers one after the other, at the pace of the real one.

A step that computes lets it be busy for a share of its own time; a step that computes nothing, for
any. Transfers land in the order in which they were started.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvalet.core.plan import AnyTransfer, Direction, Transfer, TransferId
from kvalet.engine.base import PACE_DEBT, PACE_SHARE
from kvalet.errors import EngineError
from kvalet.sim.costs import CostModel

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
        self._credit_s: float | None = None  # how long it may be busy now; None: for any time
        self._free_at = 0.0  # when it could begin the next page

    @property
    def is_busy(self) -> bool:
        return bool(self._queue)

    def pace(self, now: float, step_s: float | None) -> None:
        """A step begins that will take about `step_s` seconds, or, None, computes nothing. What was
        overdrawn is still owed."""
        credit_s = math.inf if self._credit_s is None else self._credit_s
        if credit_s <= _EPSILON_S or not self._queue:
            self._free_at = max(self._free_at, now)
        share_s = PACE_SHARE * (step_s or 0.0)
        debt_s = max(min(0.0, credit_s), -PACE_DEBT * share_s)
        self._credit_s = None if step_s is None else debt_s + share_s

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
            if self._credit_s is not None:
                self._credit_s -= count * flight.page_s
            if flight.pages_left:
                return
            self._landed.append(self._queue.popleft().transfer_id)

    def finish(self, now: float) -> float:
        """Copy all there is, at once; returns when it is done."""
        self._credit_s, self._free_at = None, max(self._free_at, now)
        self.advance(float("inf"))
        return self._free_at

    def take_landed(self) -> tuple[TransferId, ...]:
        landed = tuple(self._landed)
        self._landed.clear()
        return landed

    def _num_pages(self, flight: _Flight, now: float) -> int:
        """That it begins while there is credit, and ends until `now`."""
        time_s = now - self._free_at + _EPSILON_S
        count = _how_often(flight.page_s, time_s, flight.pages_left, math.floor)
        if self._credit_s is None:
            return count
        return _how_often(flight.page_s, self._credit_s - _EPSILON_S, count, math.ceil)


def _how_often(page_s: float, seconds: float, most: int, rounded: Callable[[float], int]) -> int:
    if seconds <= 0:
        return 0
    return most if most * page_s <= seconds else rounded(seconds / page_s)
