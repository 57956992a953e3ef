"""What a benchmark's runs have in common: circumstances, tables in Markdown, a clean way out."""

import os
import platform
import signal
import statistics
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from types import FrameType

from kvalet import __version__


def circumstances() -> dict[str, object]:
    """Of a measurement: versions, machine and its load now."""
    return {
        "kvalet": __version__,
        "ggml-python": version("ggml-python"),
        "machine": platform.platform(),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that `percent` of them do not exceed; 0 of none."""
    ordered = sorted(values) or [0.0]
    return ordered[int(percent / 100 * (len(ordered) - 1))]


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    if not values:
        return "-"
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


def end_on_sigterm() -> None:
    """As after Ctrl-C: a server that was started ends with its block."""
    signal.signal(signal.SIGTERM, _end)


def _end(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
