"""What was planned is planned again, byte for byte."""

from functools import cache

import pytest

from tests.replay import coverage, traces
from tests.replay.driver import Trace, play
from tests.replay.scenarios import SCENARIOS

NAMES = traces.names()


@cache
def played(name: str) -> Trace:
    return play(traces.read(name).scenario)


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_the_recorded_ones(name: str) -> None:
    found = traces.difference(traces.read(name).plans, played(name).plans)
    assert found is None, f"{name}: another plan in {found}"


@pytest.mark.parametrize("name", NAMES)
def test_changes_and_counters_are_the_recorded_ones(name: str) -> None:
    recorded = traces.read(name)
    found = traces.difference(recorded.events, played(name).events)
    assert found is None, f"{name}: another event in {found}"
    assert played(name).counters == recorded.counters


def test_traces_are_those_of_the_scenarios() -> None:
    assert [traces.read(name).scenario for name in NAMES] == sorted(SCENARIOS, key=lambda s: s.name)


def test_the_traces_exercise_all_that_they_are_for() -> None:
    assert coverage.missing([traces.read(name) for name in NAMES]) == []
