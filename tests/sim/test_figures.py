"""Numbers of runs, and how cells are compared."""

from math import sqrt

import pytest

from kvalet.sim.figures import Spread, ratio


def test_spread_is_between_seeds() -> None:
    assert Spread.of([1.0, 2.0, 3.0]) == Spread(2.0, 1.0)
    assert Spread.of([4.0]) == Spread(4.0, 0.0)


def test_a_ratio_is_as_sure_as_its_seeds_agree() -> None:
    loads = [10.0, 20.0, 60.0]
    twice = ratio([20.0, 40.0, 120.0], loads)
    assert twice is not None
    assert (twice.value, twice.se) == pytest.approx((2.0, 0.0))
    uneven = ratio([1.0, 3.0], [2.0, 2.0])
    assert uneven is not None
    assert (uneven.value, uneven.se) == pytest.approx((1.0, sqrt(2) / sqrt(2) / 2))


def test_there_is_no_multiple_of_nothing() -> None:
    assert ratio([1.0, 2.0], [0.0, 0.0]) is None
