"""The one table of all benchmarks."""

from kvalet.bench.harness import FIRST
from kvalet.bench.report import Round, Row, Turn
from kvalet.bench.short import PARTS, lines_of


def test_a_line_for_every_case_with_what_is_worth_telling() -> None:
    rounds: list[Round] = [
        {FIRST: Turn({"4 at once": Row("4 at once", {"complete": 0, "tok/s": speed})}, ())}
        for speed in (150.0, 170.0)
    ]
    (line,) = lines_of("decode", rounds)
    assert line == ("decode", "4 at once", "complete 0, tok/s 160 (150-170)")


def test_every_benchmark_has_a_part() -> None:
    assert list(PARTS) == ["decode", "pressure", "stall", "latency", "prefix", "exact"]
