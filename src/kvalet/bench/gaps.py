"""Gaps between the tokens of chats, and whether a copy of another chat's pages ran beside them.

Only the chats' own streams are looked at. In a pool that is large enough for all of them, a chat is
away, from `: preempted` to `: resumed`, for as long as its pages are copied out and in, so a gap
ran beside a copy if another chat was away during it. A step's events reach their streams within a
moment, not at once; hence a tenth of a gap is tolerated at its edges, and what is shorter does not
count. The notice of a park arrives at the end of the step that parks: an asynchronous copy starts
then, but a synchronous one has run by then, so with those a chat counts as away from its last piece
on. What remains uncertain is one gap at either end of an absence of several.

A gap belongs to chats that ran in the step it ended with, those with a piece at about that time: a
piece held back, because a character was incomplete, is missed. Gaps beside another chat's prefill
are left out.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from kvalet.bench.chats import Chat, MomentKind
from kvalet.bench.figures import percentile

EDGE = 0.1  # of a gap
SAME_STEP = 0.5  # of the median gap; the next step ends about a whole one later


@dataclass(frozen=True, slots=True)
class Gap:
    seconds: float
    num_running: int  # chats that got a token in the step that ended it
    is_beside_copy: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """A chat's stream, in seconds of one clock for all chats."""

    sent: float
    pieces: Sequence[float]
    gaps: Sequence[tuple[float, float]]  # between pieces, pauses apart
    absences: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, chat: Chat, *, is_async: bool) -> Self:
        """Of a chat that has been sent."""
        starts = chat.moments[1:] if is_async else chat.moments
        preempted = [
            start.at_s
            for moment, start in zip(chat.moments[1:], starts, strict=False)
            if moment.kind is MomentKind.PREEMPTED
        ]
        gaps = [
            (a.at_s, b.at_s)
            for a, b in pairwise(chat.moments)
            if a.kind is b.kind is MomentKind.PIECE
        ]
        absences = list(zip(preempted, chat.times(MomentKind.RESUMED), strict=False))
        sent, *_ = chat.times(MomentKind.SENT)
        return cls(sent, chat.times(MomentKind.PIECE), gaps, absences)

    def is_prefilling(self, start: float, end: float) -> bool:
        return self.sent <= end and (not self.pieces or self.pieces[0] >= start)

    def is_away(self, start: float, end: float) -> bool:
        edge = EDGE * (end - start)
        return any(a < end - edge and b > start + edge for a, b in self.absences)

    def ran(self, about: float, near: float) -> bool:
        """Whether it got a piece at that time, give or take `near`."""
        first = bisect_left(self.pieces, about - near)
        return first < len(self.pieces) and self.pieces[first] <= about + near


def gaps(chats: Sequence[Chat], *, is_async: bool) -> Iterator[Gap]:
    """Those of all chats. `is_async`: copies run beside steps, not within them."""
    timelines = [Timeline.of(chat, is_async=is_async) for chat in chats]
    seconds = [gap for chat in chats for gap in chat.gaps_s]
    near = SAME_STEP * (percentile(seconds, 50) or 0.0)
    for timeline in timelines:
        others = [other for other in timelines if other is not timeline]
        for start, end in timeline.gaps:
            if not any(other.is_prefilling(start, end) for other in others):
                yield Gap(
                    end - start,
                    1 + sum(other.ran(end, near) for other in others),
                    any(other.is_away(start, end) for other in others),
                )


def tokens_per_s(chats: Sequence[Chat]) -> float | None:
    """Of all chats from when the last of them has its first piece to when the first of them has its
    last, running or parked; pieces are taken for tokens. None if there is no such time, or if one
    is not complete."""
    pieces = [chat.times(MomentKind.PIECE) for chat in chats]
    if not chats or not all(pieces) or not all(chat.is_complete for chat in chats):
        return None
    start, end = max(times[0] for times in pieces), min(times[-1] for times in pieces)
    num_tokens = sum(start < at <= end for times in pieces for at in times)
    return num_tokens / (end - start) if start < end else None
