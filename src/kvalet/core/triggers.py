"""When to park, and who may enter: lookahead or watermarks (behaviour P1, P4).

A trigger answers two questions about the coming step, from the arithmetic of `room.py` alone. Its
`is_pressed` is asked again after every park.
"""

from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from kvalet.core import room
from kvalet.core.config import PreemptionConfig
from kvalet.core.pages import PagePool
from kvalet.core.room import Entry, Pace
from kvalet.core.sequence import Sequence


class Trigger(Protocol):
    def is_pressed(
        self, residents: list[Sequence], pool: PagePool, leaving: int, pace: Pace
    ) -> bool:
        """Whether the residents' next steps do not fit. `leaving`: pages about to be given back."""
        ...

    def can_enter(
        self, seq: Sequence, entry: Entry, residents: list[Sequence], pool: PagePool, pace: Pace
    ) -> bool:
        """Whether `seq` may come into the pool beside `residents`."""
        ...


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Park when the coming step and the `lookahead_steps` after it do not fit."""

    def is_pressed(
        self, residents: list[Sequence], pool: PagePool, leaving: int, pace: Pace
    ) -> bool:
        return room.shortage(residents, pool.num_clear, leaving, pace) > 0

    def can_enter(
        self, seq: Sequence, entry: Entry, residents: list[Sequence], pool: PagePool, pace: Pace
    ) -> bool:
        return room.can_enter(seq, entry, residents, pool.num_clear, pace)


@dataclass(frozen=True, slots=True)
class LastResort(Lookahead):
    """Enters alike, but is parked only when the coming step itself does not fit (behaviour P12)."""

    @override
    def is_pressed(
        self, residents: list[Sequence], pool: PagePool, leaving: int, pace: Pace
    ) -> bool:
        return sum(room.need(seq, pace) for seq in residents) > pool.num_clear + leaving


@dataclass(frozen=True, slots=True)
class Watermark:
    """Park when use crosses `high` percent of the pool, enter only while it stays below `low`."""

    high: int
    low: int

    def is_pressed(
        self, residents: list[Sequence], pool: PagePool, leaving: int, pace: Pace
    ) -> bool:
        need = sum(room.need(seq, pace) for seq in residents)
        use = pool.num_referenced - leaving + need
        is_over = len(residents) > 1 and 100 * use > self.high * pool.num_pages
        return is_over or need > pool.num_clear + leaving

    def can_enter(
        self, seq: Sequence, entry: Entry, residents: list[Sequence], pool: PagePool, pace: Pace
    ) -> bool:
        if not residents:
            return entry.fresh <= pool.num_clear
        coming = entry.fresh + sum(room.need(s, pace) + room.committed(s, pace) for s in residents)
        use = pool.num_referenced + coming
        return coming <= pool.num_clear and 100 * use < self.low * pool.num_pages


def make_trigger(config: PreemptionConfig) -> Trigger:
    if config.trigger == "watermark":
        return Watermark(config.high_percent, config.low_percent)
    return Lookahead() if config.planner else LastResort()
