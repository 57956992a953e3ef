"""How benchmarks tell what they found."""

import json
import os
import platform
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from kvalet.bench import report
from kvalet.bench.figures import percentile, percentiles


@pytest.fixture
def _not_begun() -> Iterator[None]:
    report.circumstances.cache_clear()
    yield
    report.circumstances.cache_clear()


@pytest.mark.usefixtures("_not_begun")
def test_the_load_is_that_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.25, 0.0, 0.0))
    report.circumstances()
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    found = report.circumstances()
    assert found["load"] == 0.25
    assert datetime.fromisoformat(str(found["date"])).utcoffset() is not None
    assert json.loads(json.dumps(found)) == found


def test_the_processor_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    monkeypatch.setattr(report, "CPU_INFO", told)
    monkeypatch.setattr(platform, "processor", lambda: "some")
    assert report.processor() == "some"
    told.write_text("processor\t: 0\nmodel name\t: Fast: One\n\nprocessor\t: 1\n")
    assert report.processor() == "Fast: One"


def test_a_percentile_is_the_nearest_rank() -> None:
    nine = [9.0, 1.0, 5.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0]
    assert [percentile(nine, percent) for percent in (0, 50, 95, 100)] == [1.0, 5.0, 9.0, 9.0]
    assert percentile(range(1, 101), 95) == 95
    assert percentiles("gap", [0.002, None, 0.001], 50, 100) == {"gap p50 ms": 1, "gap max ms": 2}
    assert percentiles("gap", [], 95) == {"gap p95 ms": None}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], "-"),
        ([None], "-"),
        ([None, 2.0], "2"),
        ([0.5, 2.0], "1.25 (0.50-2.00)"),
        ([12.34], "12.3"),
        ([150.2, 149.9, 151.0], "150 (150-151)"),
        ([3, 4, 8], "4 (3-8)"),
    ],
)
def test_a_median_and_a_range_have_as_many_digits_as_they_need(
    values: list[float | None], shown: str
) -> None:
    assert report.spread(values) == shown


def test_markdown() -> None:
    lines = list(report.markdown(["a", "b"], [["1", "2"], ["3", "4"]]))
    assert lines == ["| a | b |", "|---|---|", "| 1 | 2 |", "| 3 | 4 |"]
