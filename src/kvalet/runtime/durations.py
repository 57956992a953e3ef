"""Where durations fall: counts over fixed bounds, cheap enough for every token (behaviour M1)."""

from bisect import bisect_left
from typing import Final

from kvalet.runtime.messages import Histogram

GAP_BOUNDS_S: Final = (
    *(0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
WAIT_BOUNDS_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    *(5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


class Buckets:
    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def histogram(self) -> Histogram:
        return Histogram(self._bounds_s, tuple(self._counts), self._sum_s)


class Durations:
    """All since the start. What a client waits for includes the pauses of its sequence."""

    def __init__(self) -> None:
        self.queue = Buckets(WAIT_BOUNDS_S)  # from arrival to the first step it takes part in
        self.first_token = Buckets(WAIT_BOUNDS_S)  # from arrival
        self.token_gap = Buckets(GAP_BOUNDS_S)  # from one token of a sequence to its next
        self.parked = Buckets(WAIT_BOUNDS_S)  # from being told of a park to being told of its end

    def histograms(self) -> dict[str, Histogram]:
        return {
            "queue_seconds": self.queue.histogram(),
            "time_to_first_token_seconds": self.first_token.histogram(),
            "inter_token_gap_seconds": self.token_gap.histogram(),
            "parked_seconds": self.parked.histogram(),
        }
