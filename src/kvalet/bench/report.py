"""How benchmarks tell what they found: circumstances, and tables in Markdown.

A figure that there is none of is `-` in a table and null in JSON.
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

from kvalet import __version__

CPU_INFO: Final = Path("/proc/cpuinfo")


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
