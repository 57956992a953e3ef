"""Two servers by turns."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvalet.bench.versus import Round, ratios_of, table


@dataclass(frozen=True)
class Seen:
    figures: Mapping[str, float]

    @property
    def is_right(self) -> bool:
        return True

    def comparable(self) -> Mapping[str, float]:
        return self.figures


ROUNDS = [
    Round(Seen({"tok/s": 100.0, "completed": 4}), Seen({"tok/s": 50.0, "completed": 0})),
    Round(Seen({"tok/s": 90.0, "completed": 4}), Seen({"tok/s": 60.0, "completed": 2})),
    Round(Seen({"tok/s": 110.0, "completed": 4}), Seen({"tok/s": 110.0, "completed": 1})),
]


def test_ratios_are_by_round_and_of_nothing_there_is_none() -> None:
    assert ratios_of(ROUNDS) == {"tok/s": [2.0, 1.5, 1.0], "completed": [2.0, 4.0]}


def test_a_table_has_medians_and_ranges() -> None:
    _, _, speed, completed = table(ROUNDS)
    assert speed == "| tok/s | 100 (90-110) | 60.00 (50.00-110.00) | 1.50 (1.00-2.00) |"
    assert completed.startswith("| completed | 4.00 (4.00-4.00) | 1.00 (0.00-2.00) |")
