"""What is counted since the start: totals, and where durations fall (behaviour M1).

Cheap enough for every token. The engine thread's own; others see it in a snapshot.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from kvalet.core.plan import StepOutcome, StepPlan
from kvalet.core.sequence import Sequence
from kvalet.runtime.messages import Histogram

GAP_BOUNDS_S: Final = (
    *(0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
WAIT_BOUNDS_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    *(5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


@dataclass(slots=True)
class Totals:
    """Under the names of /metrics without their prefix."""

    prompt_tokens_total: int = 0  # computed, of prompts that are complete
    prompt_seconds_total: float = 0.0
    tokens_predicted_total: int = 0
    tokens_predicted_seconds_total: float = 0.0
    n_decode_total: int = 0  # steps that computed tokens
    n_busy_slots_total: int = 0  # sequences that took part, summed over those steps
    step_seconds_total: float = 0.0  # planning to delivery
    compute_seconds_total: float = 0.0  # of those, in the device's graph executor
    copy_seconds_total: float = 0.0  # the copier was busy


class Buckets:
    """Counts of durations over fixed bounds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def histogram(self) -> Histogram:
        return Histogram(self._bounds_s, tuple(self._counts), self._sum_s)


class Metrics:
    """What a client waits for includes the pauses of its sequence."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.queue = Buckets(WAIT_BOUNDS_S)  # from arrival to the first step it takes part in
        self.first_token = Buckets(WAIT_BOUNDS_S)  # from arrival
        self.token_gap = Buckets(GAP_BOUNDS_S)  # from one token of a sequence to its next
        self.parked = Buckets(WAIT_BOUNDS_S)  # from being told of a park to being told of its end

    def count_first_token(self, seq: Sequence, waited_s: float, own_s: float) -> None:
        """`waited_s`: as its client sees it; `own_s`: without pauses."""
        self.first_token.observe(waited_s)
        self.totals.tokens_predicted_total += 1
        self.totals.prompt_tokens_total += seq.num_prompt - seq.num_cached
        self.totals.prompt_seconds_total += own_s

    def count_next_token(self, waited_s: float, own_s: float) -> None:
        self.token_gap.observe(waited_s)
        self.totals.tokens_predicted_total += 1
        self.totals.tokens_predicted_seconds_total += own_s

    def count_step(self, plan: StepPlan, outcome: StepOutcome, seconds: float) -> None:
        if plan.grants:
            self.totals.n_decode_total += 1
            self.totals.n_busy_slots_total += len(plan.grants)
        self.totals.step_seconds_total += seconds
        self.totals.compute_seconds_total += outcome.compute_s
        self.totals.copy_seconds_total += outcome.copy_s

    def histograms(self) -> dict[str, Histogram]:
        return {
            "queue_seconds": self.queue.histogram(),
            "time_to_first_token_seconds": self.first_token.histogram(),
            "inter_token_gap_seconds": self.token_gap.histogram(),
            "parked_seconds": self.parked.histogram(),
        }
