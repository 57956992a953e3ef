"""A stream's comments: a sequence is parked, still is; the stream is alive (behaviour N1 to N3).

    : preempted          when a sequence stops taking part; `: resumed` when it takes part again
    : preempt-keepalive  every so often between the two
    : ping               when nothing else was written for long

Where a request has several sequences, the first three end with the index of theirs. Has no clock:
it is told the time, in seconds. Knows the words, not how a stream writes them.
"""

from dataclasses import dataclass
from typing import Self

KEEPALIVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Cadence:
    keepalive_s: float
    ping_s: float | None  # None: no pings

    @classmethod
    def of(cls, server_s: float, request_s: float | None) -> Self:
        """From the ping intervals of the server and of a request (None: does not say); not above
        0: no pings. Only the request's can make keepalives more frequent."""
        ping_s = server_s if request_s is None else request_s
        wanted_s = request_s or 0.0
        keepalive_s = min(wanted_s, KEEPALIVE_S) if wanted_s > 0 else KEEPALIVE_S
        return cls(keepalive_s, ping_s if ping_s > 0 else None)


class Notices:
    def __init__(self, num_sequences: int, cadence: Cadence, now: float) -> None:
        self._cadence = cadence
        self._has_several = num_sequences > 1
        self._num_live = num_sequences
        self._away: dict[int, float] = {}  # when each one's next keepalive is due
        self._silent_since = now

    def preempted(self, index: int, now: float) -> str:
        self._away[index] = now + self._cadence.keepalive_s
        return self._words("preempted", index)

    def resumed(self, index: int) -> str:
        self._away.pop(index, None)
        return self._words("resumed", index)

    def ended(self, index: int) -> None:
        self._away.pop(index, None)
        self._num_live -= 1

    def wrote(self, now: float) -> None:
        """Something went out."""
        self._silent_since = now

    def next_at(self) -> float | None:
        """When something is due if nothing happens before."""
        times = [*self._away.values()]
        if (ping_at := self._ping_at()) is not None:
            times.append(ping_at)
        return min(times, default=None)

    def due(self, now: float) -> list[str]:
        """What has to be written now; it counts as written."""
        late = [index for index, due_at in self._away.items() if now >= due_at]
        for index in late:
            self._away[index] += self._cadence.keepalive_s
            if self._away[index] <= now:  # nothing could be written for long: no burst
                self._away[index] = now + self._cadence.keepalive_s
        written = [self._words("preempt-keepalive", index) for index in late]
        ping_at = self._ping_at()
        if not written and ping_at is not None and now >= ping_at:
            written = ["ping"]
        if written:
            self._silent_since = now
        return written

    def _ping_at(self) -> float | None:
        is_all_away = len(self._away) == self._num_live
        if self._cadence.ping_s is None or is_all_away:
            return None
        return self._silent_since + self._cadence.ping_s

    def _words(self, word: str, index: int) -> str:
        return f"{word} {index}" if self._has_several else word
