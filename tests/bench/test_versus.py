"""Two servers by turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvalet.bench.chats import Chat, ChatState
from kvalet.bench.latency import Options, figures_of
from kvalet.bench.versus import Round, errors, ratios_of, table
from tests.bench.streams import chat, moments


@dataclass(frozen=True)
class Seen:
    figures: Mapping[str, float]

    @property
    def is_right(self) -> bool:
        return True

    @property
    def errors(self) -> Sequence[str]:
        return ["it broke", "it broke"] if not self.figures.get("completed", 1) else []

    def comparable(self) -> Mapping[str, float]:
        return self.figures


ROUNDS = [
    Round(Seen({"tok/s": 100.0, "completed": 4}), Seen({"tok/s": 50.25, "completed": 0})),
    Round(Seen({"tok/s": 90.0, "completed": 4}), Seen({"tok/s": 60.25, "completed": 2})),
    Round(Seen({"tok/s": 110.0, "completed": 4}), Seen({"tok/s": 110.0, "completed": 1})),
]


def test_ratios_are_by_round_and_of_nothing_there_is_none() -> None:
    found = ratios_of(ROUNDS)
    assert found["completed"] == [2.0, 4.0]
    assert found["tok/s"] == [100 / 50.25, 90 / 60.25, 1.0]


def test_why_chats_failed_is_told_once() -> None:
    assert list(errors(ROUNDS)) == ["second: a chat failed: it broke"]


def test_who_answered_nothing_is_not_fast() -> None:
    answers = [chat("a", moments("sent 0, piece 0.5, piece 0.6"), num_tokens=2)]
    answers[0].state = ChatState.DONE
    failed = [Chat("a", {"max_tokens": 2}, ChatState.FAILED)]
    first, second = (figures_of(Options(), 1.0, some, 1.0, 0) for some in (failed, answers))
    rounds = [Round(Seen(first.comparable()), Seen(second.comparable()))]
    found = ratios_of(rounds)
    assert found["completed"] == [0.0]
    assert found["first token p50 ms"] == found["gap p50 ms"] == []
    assert "| first token p50 ms | - | 500 (500-500) | - |" in list(table(rounds))


def test_a_table_has_medians_and_ranges() -> None:
    _, _, speed, completed = table(ROUNDS)
    assert speed == "| tok/s | 100 (90-110) | 60.25 (50.25-110.00) | 1.49 (1.00-1.99) |"
    assert completed.startswith("| completed | 4 (4-4) | 1 (0-2) |")
