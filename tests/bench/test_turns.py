"""Second turns of any server."""

import math
from dataclasses import replace

from kvalet.bench.turns import HEADINGS, Turn, Turns, rows

FOUND = Turns(warm=Turn(100.0, 1600, 1500), cold=Turn(2000.0, 1600, 0))


def test_a_row_for_cold_and_for_warm() -> None:
    cold, warm = rows([FOUND, replace(FOUND, warm=Turn(200.0, 1600, 1500))])
    assert cold[:3] == ["cold", "2000 (2000-2000)", "-"]
    assert warm[:3] == ["warm", "150 (100-200)", "15.0 (10.0-20.0)"]
    assert len(cold) == len(warm) == len(HEADINGS)


def test_a_turn_without_text_is_wrong() -> None:
    assert FOUND.is_right
    assert not replace(FOUND, warm=Turn(math.nan, 1600, 0)).is_right
