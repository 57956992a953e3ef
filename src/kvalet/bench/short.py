"""`kvalet bench short`: a short version of every benchmark, and one table of what they came to.

Minutes instead of an hour; for figures to rely on, run each by its own name. The last line of its
output is JSON.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Final, NamedTuple, TypeAlias

from rich.console import Console

from kvalet.bench import decode, exact, latency, prefix, pressure, stall
from kvalet.bench.report import begin, circumstances, markdown, shown
from kvalet.bench.target import Where

HEADINGS: Final = ("benchmark", "case", "result")
SMALL_POOL: Final = ("--ctx-size", "1024")  # for answers of a third of the usual length


class Line(NamedTuple):
    case: str
    result: str
    is_right: bool = True


Scenario: TypeAlias = Callable[[Console, Where], Iterator[Line]]


def run(console: Console, where: Where) -> int:
    """0 if everything was complete and every text as alone, else 1."""
    begin()
    found: list[tuple[str, Line]] = []
    seconds: dict[str, float] = {}
    for name, scenario in SCENARIOS.items():
        console.print(f"== {name}")
        start = time.monotonic()
        found += [(name, line) for line in scenario(console, where)]
        seconds[name] = round(time.monotonic() - start, 1)
    console.print()
    table = ([name, line.case, line.result] for name, line in found)
    console.print(*markdown(HEADINGS, table), "", sep="\n")
    lines = [{"benchmark": name, **line._asdict()} for name, line in found]
    console.print(
        json.dumps({**circumstances(), "where": asdict(where), "lines": lines, "seconds": seconds})
    )
    return 0 if all(line.is_right for _, line in found) else 1


def _decode(console: Console, where: Where) -> Iterator[Line]:
    found = decode.measure(decode.Options(replace(where, num_rounds=2), num_tokens=150))
    for count, speed, step, compute, outside in decode.rows(found):
        result = f"{speed} tok/s; a step {step} ms, {compute} of it in ggml ({outside} outside)"
        yield Line(f"{count} at once", result)


def _pressure(console: Console, where: Where) -> Iterator[Line]:
    options = pressure.Options(_with_flags(where, *SMALL_POOL), num_tokens=250)
    for _, figures in pressure.rows_of(console, options, "once"):
        complete = f"{figures.completed}/{figures.chats} complete"
        identical = f"{figures.identical}/{figures.chats} as alone"
        speed = f"{figures.tokens_per_s:.1f} tok/s, gap p95 {shown(figures.gap_p95_ms, 1)} ms"
        result = f"{complete}, {identical}, {figures.parks} parks, {speed}"
        yield Line("4 chats in 1024 cells", result, figures.is_right and bool(figures.parks))


def _stall(console: Console, where: Where) -> Iterator[Line]:
    options = stall.Options(replace(where, num_rounds=1), num_tokens=420)
    runs = stall.measure(console, options)
    ratios = {
        (row.mode, row.num_running): ratio
        for row in stall.rows_of_gaps(runs)
        for ratio in row.p95_ratios
    }
    for row in stall.rows_of_runs(runs):
        told = [
            f"{ratio:.2f} of {count}" for (mode, count), ratio in ratios.items() if mode == row.mode
        ]
        beside = f"; gap p95 beside a copy, times that without: {', '.join(told)}" if told else ""
        speed = f"{shown(row.tokens_per_s[0], 1)} tok/s of four, {row.parks} parks"
        yield Line(f"copies: {row.mode}", speed + beside, row.is_right)


def _latency(console: Console, where: Where) -> Iterator[Line]:
    options = latency.Options(where, rates=(0.5, 1.5), num_requests=16)
    with where.served(*latency.POOL) as target:
        sweep = latency.measure(target, options, tell=console.print)
    for figures in sweep.rates:
        _, _, _, first_ms, gaps_ms, *_ = figures.cells()
        first, gaps = f"first token p50 / p95 {first_ms} ms", f"gap p50 / p99 {gaps_ms} ms"
        counts = f"{figures.completed}/{figures.requests} complete"
        result = f"{counts}, {first}, {gaps}, goodput {figures.goodput:.2f}/s"
        yield Line(f"{figures.rate:g} a second", result, figures.completed == figures.requests)


def _prefix(console: Console, where: Where) -> Iterator[Line]:
    turns = prefix.measure(console, replace(where, num_rounds=1))
    for place, first_ms, faster, *_, as_cold in prefix.rows(turns):
        told = "" if place == prefix.COLD else f", {faster} times faster, {as_cold} as cold"
        is_right = all(turn.is_right for turn in turns if turn.place == place)
        yield Line(f"history: {place}", f"first token {first_ms} ms{told}", is_right)


def _exact(console: Console, where: Where) -> Iterator[Line]:
    options = exact.Options(where, num_tokens=48)
    for row in exact.measure(console, options).rows:
        result = f"{row.identical}/{row.asked} identical"
        happened = f"; {row.happened}" if row.happened else ""
        yield Line(row.way, result + happened, row.is_right)


def _with_flags(where: Where, *flags: str) -> Where:
    return replace(where, flags=(*where.flags, *flags))


SCENARIOS: Final[dict[str, Scenario]] = {
    "decode": _decode,
    "pressure": _pressure,
    "stall": _stall,
    "latency": _latency,
    "prefix": _prefix,
    "exact": _exact,
}
