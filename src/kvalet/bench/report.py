"""What rounds came to, and how benchmarks tell it: tables in Markdown, ratios, circumstances.

A figure that there is none of is `-` in a table and null in JSON.
"""

import os
import platform
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from kvalet import __version__
from kvalet.bench.figures import Figures

CPU_INFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    figures: Figures
    faults: Sequence[str] = ()  # what is not as it should be, beside chats that failed

    @property
    def is_whole(self) -> bool:
        return not (self.figures.get("failed") or self.figures.get("stopped early"))


@dataclass(frozen=True, slots=True)
class Turn:
    """What a round on one server came to."""

    rows: Mapping[str, Row]  # by case
    faults: Sequence[str]


Round: TypeAlias = Mapping[str, Turn]  # by the server's name; of the first one first


@cache  # a load that is looked at after a run is that of the run
def circumstances() -> Mapping[str, object]:
    """Of a measurement: when it began, versions, machine and its load; as they were when this was
    first called."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kvalet": __version__,
        "ggml-python": version("ggml-python"),
        "machine": platform.platform(),
        "processor": processor(),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def processor() -> str:
    """The name of its model where Linux tells it, else what Python knows; may be empty."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def spread(values: Iterable[float | None]) -> str:
    """Median and range of those that are not None, with as many digits as their size asks for."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    median, least, most = statistics.median(found), min(found), max(found)
    digits = _digits(found)
    if least == most:
        return f"{median:.{digits}f}"
    return f"{median:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


def _digits(values: Sequence[float]) -> int:
    size = abs(statistics.median(values))
    if size >= 100 or all(float(value).is_integer() for value in values):
        return 0
    return 1 if size >= 10 else 2


def tables(rounds: Sequence[Round]) -> Iterator[str]:
    """Of the first server: a table for each kind of row; medians and ranges."""
    first = next(iter(rounds[0]))
    kinds: dict[str, tuple[str, ...]] = {}
    for row in (row for turns in rounds for row in turns[first].rows.values()):
        kinds.setdefault(row.case, tuple(row.figures))
    for names, group in groupby(kinds, lambda case: kinds[case]):
        rows = (
            [case, *(spread(values(rounds, first, case, name)) for name in names)] for case in group
        )
        yield from (*markdown(["case", *names], rows), "")


def values(rounds: Iterable[Round], name: str, case: str, figure: str) -> list[float | None]:
    """Of one server, by round, of those that have the case."""
    rows = (turns[name].rows.get(case) for turns in rounds)
    return [row.figures.get(figure) for row in rows if row is not None]


def ratios(
    rounds: Iterable[Round], names: tuple[str, str], case: str, figure: str
) -> Iterator[float]:
    """How many times of the second server's the first one's figure is, by round, where both have it
    and all chats of both were complete."""
    for turns in rounds:
        one, other = (turns[name].rows.get(case) for name in names)
        if one and other and one.is_whole and other.is_whole:
            a, b = one.figures.get(figure), other.figures.get(figure)
            if a is not None and b:
                yield a / b


def _compared(rounds: Sequence[Round]) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Case, figure and the ratios to each other server."""
    first, *others = rounds[0]
    rows = (row for turns in rounds for turn in turns.values() for row in turn.rows.values())
    for case, figure in dict.fromkeys((row.case, name) for row in rows for name in row.figures):
        found = {name: list(ratios(rounds, (first, name), case, figure)) for name in others}
        yield case, figure, found


def comparison(rounds: Sequence[Round]) -> Iterator[str]:
    """A line for every figure: medians and ranges of each server, and of ratios."""
    first, *others = names = list(rounds[0])
    headings = ["case", "figure", *names, *(f"{first} / {name}" for name in others)]
    rows = (
        [
            *(case, figure),
            *(spread(values(rounds, name, case, figure)) for name in names),
            *map(spread, found.values()),
        ]
        for case, figure, found in _compared(rounds)
    )
    yield from (*markdown(headings, rows), "")


def faults_of(rounds: Iterable[Round]) -> Iterator[str]:
    """What was wrong, each once."""
    sides = (side for turns in rounds for side in turns.items())
    found = (f"{name}: {fault}" for name, turn in sides for fault in turn.faults)
    return iter(dict.fromkeys(found))


def told(rounds: Sequence[Round]) -> Mapping[str, object]:
    """As JSON has it."""
    sides = [
        {
            name: {
                "rows": [{"case": case, **row.figures} for case, row in turn.rows.items()],
                "faults": turn.faults,
            }
            for name, turn in turns.items()
        }
        for turns in rounds
    ]
    if len(rounds[0]) == 1:
        return {"rounds": sides}
    return {"rounds": sides, "ratios": {f"{case}: {of}": by for case, of, by in _compared(rounds)}}
