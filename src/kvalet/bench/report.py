"""What a benchmark's runs have in common: circumstances, tables in Markdown.

A figure that there is none of is None, never 0: `-` in a table, null in JSON, and not compared.
"""

import os
import platform
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np

from kvalet import __version__

CPU_INFO: Final = Path("/proc/cpuinfo")


def begin() -> None:
    """Before anything is measured."""
    circumstances()


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


def percentile(values: Iterable[float], percent: float) -> float:
    """By nearest rank, so it is a value that occurred."""
    return float(np.percentile(list(values), percent, method="inverted_cdf"))


def percentile_or_none(values: Iterable[float], percent: float) -> float | None:
    """None of nothing."""
    found = list(values)
    return percentile(found, percent) if found else None


def known(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Those that are not None."""
    return {name: value for name, value in figures.items() if value is not None}


def shown(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def spread(values: Iterable[float | None], digits: int) -> str:
    """Median and range of those that are not None."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    median, least, most = statistics.median(found), min(found), max(found)
    return f"{median:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"
