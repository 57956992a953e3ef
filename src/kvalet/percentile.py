"""Percentiles as kvalet means them: nearest rank, so every one is a value that occurred."""

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least `percent` per cent of them do not exceed. Raises ValueError
    of nothing."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("of nothing there is no percentile")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
