"""What `kvalet bench stall` makes of its runs."""

from collections.abc import Sequence

from kvalet.bench import mirror
from kvalet.bench.chats import Chat, Moment
from kvalet.bench.figures import ParkLine, park_lines
from kvalet.bench.figures import Run as PressureRun
from kvalet.bench.report import markdown
from kvalet.bench.stall import (
    APART,
    EVERY,
    GAP_HEADINGS,
    PERCENTILES,
    RUN_HEADINGS,
    Run,
    rows_of_gaps,
    rows_of_runs,
)
from tests.bench.streams import chat, moments, steps

MIB = 1 << 20


def counted(parks: int, moved: int) -> dict[str, float]:
    names = ("preempt_bytes_out_total", "preempt_bytes_in_total")
    return {"n_preempt_total": parks, **dict.fromkeys(names, float(moved))}


def forced(beside: Sequence[Moment], text: str = "two") -> list[Chat]:
    """One chat, planned out of step 4 and away during step 5, beside another."""
    told = moments("sent -9, preempted 4, resumed 5")
    away = chat("a", [*told, *steps(0, 3), *steps(6, 8)], num_tokens=8, text="one")
    return [away, chat("b", [*moments("sent -9"), *beside], num_tokens=8, text=text)]


def unforced() -> list[Chat]:
    both = [("a", "one"), ("b", "two")]
    told = [*moments("sent -9"), *steps(0, 8)]
    return [chat(name, told, num_tokens=8, text=text) for name, text in both]


def runs(**of_async: str) -> list[Run]:
    return [
        Run(0, "unforced", unforced(), counted(0, 0)),
        Run(0, "async", forced(steps(0, 8), **of_async), counted(1, MIB)),
    ]


def test_the_gaps_of_a_mode_and_a_number_of_chats() -> None:
    slow = [*steps(0, 4), *steps(1, 4, late_s=4.25)]  # step 5 takes longer
    rows = list(rows_of_gaps([Run(0, "async", forced(slow), counted(1, MIB))]))
    (alone,) = [row for row in rows if row.num_running == 1]
    assert (alone.num_without, alone.without_ms) == (1, [1000.0] * len(PERCENTILES))
    assert (alone.num_with, alone.with_ms) == (1, [1250.0] * len(PERCENTILES))
    assert alone.p95_ratios == [1.25]
    assert [len(row.cells()) for row in rows] == [len(GAP_HEADINGS)] * len(rows)


def test_without_a_copy_there_is_no_ratio() -> None:
    (row,) = [row for row in rows_of_gaps(runs()) if row.mode == "unforced"]
    assert (row.num_running, row.num_with, row.p95_ratios) == (2, 0, [])
    assert (row.with_ms, row.cells()[5:]) == ([], ("-", "-"))


def test_throughput_and_bytes() -> None:
    first, second, third = rows_of_runs(runs())
    assert (first.mode, first.of_unforced, first.is_right) == ("unforced", [1.0], True)
    assert second.of_unforced == [14 / 16]
    assert (second.parks, second.bytes_in, second.is_right) == (1, MIB, True)
    assert third.runs == 0
    assert len(second.cells()) == len(RUN_HEADINGS)


def test_what_is_incomplete_has_no_throughput() -> None:
    cut = unforced()
    cut[0].num_tokens -= 1
    row, *_ = rows_of_runs([Run(0, "unforced", cut, counted(0, 0))])
    assert (row.tokens_per_s, row.of_unforced, row.cells()[1]) == ([None], [], "-")


def test_another_text_and_nothing_moved_are_wrong() -> None:
    assert not list(rows_of_runs(runs(text="2")))[1].is_right
    still = [runs()[0], Run(0, "async", forced(steps(0, 8)), counted(1, 0))]
    assert not list(rows_of_runs(still))[1].is_right


def test_starts_are_apart_by_other_tokens_modulo_the_parks() -> None:
    assert len({number * APART % EVERY for number in range(4)}) == 4


def test_park_lines() -> None:
    line = "12:00 INFO park: slot=0 request=a b cells=9 bytes=1048576 mode=swap ms=1.5 why='x'"
    other = line.replace("park:", "resume:")
    assert list(park_lines(f"{line}\n{other}\n")) == [ParkLine(MIB, "swap", 1.5)]


def test_a_table_of_mirroring() -> None:
    figures = PressureRun([], 1.0, dict.fromkeys(PRESSURE_COUNTERS, 0.0), []).figures({})
    found = [
        mirror.Run(mode, [ParkLine(MIB, "swap", ms)], 0.25, 3 * MIB, figures)
        for mode, ms in (("on", 2.0), ("off", 8.0), ("on", 4.0))
    ]
    on, off = mirror.rows(found)
    assert on[:3] == ["on", "2", "3.0 (2.0-4.0), p95 4.0"]
    assert off[:3] == ["off", "1", "8.0 (8.0-8.0), p95 8.0"]
    assert len(on) == len(mirror.HEADINGS)


PRESSURE_COUNTERS = (
    *("n_preempt_total", "n_preempt_swap_total", "n_preempt_recompute_total"),
    "n_recompute_tokens_total",
)


def test_markdown() -> None:
    lines = list(markdown(["a", "b"], [["1", "2"], ["3", "4"]]))
    assert lines == ["| a | b |", "|---|---|", "| 1 | 2 |", "| 3 | 4 |"]
