"""What `kvalet bench stall` makes of its runs."""

from collections.abc import Mapping, Sequence

from kvalet.bench.chats import Chat, Moment
from kvalet.bench.harness import Played
from kvalet.bench.report import Row
from kvalet.bench.stall import APART, EVERY, SYNC, UNFORCED, Stall
from tests.bench.streams import PARKED, chat, moments, played, steps

STILL = dict.fromkeys(PARKED, 0.0)


def forced(beside: Sequence[Moment], text: str = "two") -> list[Chat]:
    """One chat, planned out of step 4 and away during step 5, beside another."""
    told = moments("sent -9, preempted 4, resumed 5")
    away = chat("a", [*told, *steps(0, 3), *steps(6, 8)], text="one")
    return [away, chat("b", [*moments("sent -9"), *beside], text=text)]


def unforced(tokens: int = 1) -> list[Chat]:
    told = [*moments("sent -9"), *steps(0, 8)]
    return [chat("a", told, text="one", tokens=tokens), chat("b", told, text="two")]


def rows(
    parked: list[Chat], counted: Mapping[str, float] = PARKED, tokens: int = 1
) -> dict[str, Row]:
    runs = {UNFORCED: played(unforced(tokens), STILL), "async": played(parked, counted)}
    return {row.case: row for row in Stall().rows(runs)}


def test_the_gaps_of_a_mode_and_a_number_of_chats() -> None:
    slow = [*steps(0, 4), *steps(1, 4, late_s=4.25)]  # step 5 takes longer
    alone = rows(forced(slow))["async, 1 running"].figures
    assert (alone["gaps without a copy"], alone["without p50 ms"]) == (1, 1000.0)
    assert (alone["gaps with a copy"], alone["with max ms"]) == (1, 1250.0)
    assert alone["p95 with / without"] == 1.25


def test_without_a_copy_there_is_no_ratio() -> None:
    row = rows(forced(steps(0, 8)))["unforced, 2 running"].figures
    assert (row["gaps with a copy"], row["with p95 ms"], row["p95 with / without"]) == (
        *(0, None, None),
    )


def test_throughput_and_bytes() -> None:
    found = rows(forced(steps(0, 8)))
    assert (found[UNFORCED].figures["of unforced"], found[UNFORCED].faults) == (1.0, [])
    told = found["async"].figures
    assert told["of unforced"] == 14 / 16
    assert (told["parks"], told["MiB out"], told["MiB in"]) == (3, 2.0, 1.0)
    assert not found["async"].faults


def test_what_is_incomplete_has_no_throughput() -> None:
    found = rows(forced(steps(0, 8)), tokens=0)[UNFORCED]
    assert (found.figures["tok/s of four"], found.figures["stopped early"]) == (None, 1)


def test_another_text_and_nothing_moved_are_wrong() -> None:
    assert rows(forced(steps(0, 8), "2"))["async"].faults == ["1 of 2 texts as unforced"]
    (fault,) = rows(forced(steps(0, 8)), {**PARKED, "preempt_bytes_in_total": 0.0})["async"].faults
    assert "did not come back" in fault


def test_synchronous_copies_are_away_from_their_last_piece_on() -> None:
    chats: dict[str, Played] = {UNFORCED: played(unforced(), STILL)}
    chats |= {mode: played(forced(steps(0, 8)), PARKED) for mode in ("async", SYNC)}
    found = {row.case: row.figures for row in Stall().rows(chats)}
    assert found["async, 1 running"]["gaps with a copy"] == 1
    assert found["sync, 1 running"]["gaps with a copy"] == 2


def test_starts_are_apart_by_other_tokens_modulo_the_parks() -> None:
    assert len({number * APART % EVERY for number in range(4)}) == 4
