"""What benchmarks have in common."""

import json
import os
import platform
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from kvalet.bench import report


@pytest.fixture
def _not_begun() -> Iterator[None]:
    report.circumstances.cache_clear()
    yield
    report.circumstances.cache_clear()


@pytest.mark.usefixtures("_not_begun")
def test_the_load_is_that_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.25, 0.0, 0.0))
    report.begin()
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
    assert [report.percentile(nine, percent) for percent in (0, 50, 95, 100)] == [
        1.0,
        5.0,
        9.0,
        9.0,
    ]
    assert report.percentile(range(1, 101), 95) == 95


def test_of_nothing_there_is_no_figure() -> None:
    assert report.percentile_or_none([], 95) is None
    assert report.shown(None, 1) == report.spread([None], 1) == report.spread([], 1) == "-"
    assert report.spread([None, 2.0], 1) == "2.0 (2.0-2.0)"
    assert report.known({"a": None, "b": 0.0}) == {"b": 0.0}
