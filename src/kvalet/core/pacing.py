"""How much prefill a step may carry while others decode (behaviour S6), from measured step times.

A step with prefill takes longer, and every decoder waits for it. The chunk is sized so that such a
step takes at most `stretch` times the median of steps without, at the cost per token seen lately.
"""

from collections import deque
from statistics import median

from kvalet.core.plan import StepPlan

SMALLEST = 16  # tokens: below that, weights are read for too little
FIRST = 64  # before anything was measured
REMEMBERED = 64  # steps
SMOOTHING = 0.2
MARGIN = 0.85  # of the stretch, since the median is aimed at and the p95 is promised


class Pacing:
    def __init__(self, stretch: float) -> None:
        self._stretch = stretch
        self._decode_s: deque[float] = deque(maxlen=REMEMBERED)
        self._median_s = 0.0
        self._token_s = 0.0  # what one token of prefill adds to a step

    def chunk(self) -> int:
        """Tokens of prefill and replay that a step with decoders may carry, over all sequences."""
        if not self._token_s or not self._median_s:
            return FIRST
        spare_s = (self._stretch * MARGIN - 1) * self._median_s
        return max(SMALLEST, int(spare_s / self._token_s))

    def observe(self, plan: StepPlan, compute_s: float) -> None:
        """What computing `plan` took."""
        num_decoding = sum(len(grant.tokens) == 1 for grant in plan.grants)
        num_filled = plan.num_tokens - num_decoding
        if not num_decoding or not compute_s:
            return
        if num_filled == 0:
            self._decode_s.append(compute_s)
            self._median_s = median(self._decode_s)
        elif self._median_s:
            token_s = max(0.0, compute_s - self._median_s) / num_filled
            weight = SMOOTHING if self._token_s else 1.0
            self._token_s += weight * (token_s - self._token_s)
