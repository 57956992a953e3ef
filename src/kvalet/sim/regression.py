"""Least squares with coefficients that are never negative, and a fit that outliers do not bend."""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

SLOW: Final = 2.0  # as a multiple of what is predicted: something else had the machine
DISTINCT: Final = 1e-3  # how different columns must be, of their length
NUM_PASSES: Final = 30
SMALLEST_ERROR: Final = 1e-3  # relative; below it all are alike
TINY: Final = 1e-9  # of what is divided by, where all is 0


def are_distinct(matrix: Floats) -> bool:
    """Whether the columns' coefficients can be told apart."""
    if not matrix.size or matrix.shape[0] < matrix.shape[1]:
        return False
    scaled = matrix / np.linalg.norm(matrix, axis=0)
    return bool(np.linalg.svd(scaled, compute_uv=False)[-1] >= DISTINCT)


def non_negative(matrix: Floats, wanted: Floats) -> Floats:
    """Least squares; what would be negative is 0, what would take most away first."""
    sizes = np.linalg.norm(matrix, axis=0)
    used = list(range(matrix.shape[1]))
    found = np.zeros(matrix.shape[1])
    while used:
        part = np.linalg.lstsq(matrix[:, used], wanted, rcond=None)[0]
        if part.min() >= 0:
            found[used] = part
            break
        used.pop(int((part * sizes[used]).argmin()))
    return found


def robust(matrix: Floats, wanted: Floats) -> Floats:
    """Least squares of errors relative to what is predicted, without what is SLOW by a first fit of
    medians (least absolute errors, by reweighting). A mean is what sums need, but not one of
    moments in which the machine did something else. Errors relative to what was measured would
    favour predictions that are too low."""
    found = _weighted(matrix, wanted, _scale(wanted, wanted))
    for _ in range(NUM_PASSES):
        scale = _scale(matrix @ found, wanted)
        errors = np.maximum(np.abs(matrix @ found - wanted) * scale, SMALLEST_ERROR)
        found = _weighted(matrix, wanted, scale / np.sqrt(errors))
    kept = wanted <= SLOW * (matrix @ found) + TINY
    scale = _scale(matrix @ found, wanted)
    return _weighted(matrix[kept], wanted[kept], scale[kept])


def _scale(sizes: Floats, wanted: Floats) -> Floats:
    """What errors are multiplied with: small values weigh no more than a tenth of the mean does."""
    scale: Floats = 1 / np.maximum(sizes, wanted.mean() / 10 + TINY)
    return scale


def _weighted(matrix: Floats, wanted: Floats, weights: Floats) -> Floats:
    return non_negative(matrix * weights[:, None], wanted * weights)
