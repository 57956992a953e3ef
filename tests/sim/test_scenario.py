"""A scenario is what `kvalet serve` makes of the same flags."""

from dataclasses import replace

import pytest

from kvalet.cli import config
from kvalet.cli.serve import scheduler_config
from kvalet.settings import changed, values_of
from kvalet.sim.scenario import DRAWN, SETTINGS, Scenario

PAGE_BYTES = 737_280
N_CTX = 4096
OWN = {*DRAWN, "lookahead"}


def test_what_serve_has_too_is_declared_there() -> None:
    served = {item.name: item for item in config.settings()}
    for item in SETTINGS:
        if item.name not in OWN | {"ctx_size"}:  # serve takes its context from the model
            assert item is served[item.name]


@pytest.mark.parametrize("field", ["slots", "steps", "preemption", "copies", "memory"])
def test_a_group_has_no_setting_that_cannot_be_simulated(field: str) -> None:
    names = {item.name for item in SETTINGS}
    missing = values_of(getattr(Scenario(), field)).keys() - names
    assert missing <= {"max_queue", "preempt_every", "preempt_planner"}


def test_the_scheduler_is_configured_as_serve_does_it() -> None:
    for flags in ({}, {"preempt_async": "off"}, {"preempt_ram": "-1", "cache_ram": "0"}):
        serve = config.load(flags, {})
        served = scheduler_config(serve, N_CTX, PAGE_BYTES)
        given = {name: values_of(serve)[name] for name in flags}
        scenario = changed(Scenario(), ctx_size=N_CTX, **given)
        simulated = scenario.scheduler_config(PAGE_BYTES, served.slots.max_queue)
        assert simulated == served


def test_a_lookahead_of_ones_own() -> None:
    served = Scenario().scheduler_config(PAGE_BYTES, 1)
    longer = changed(Scenario(), lookahead=20).scheduler_config(PAGE_BYTES, 1)
    assert longer == replace(served, lookahead_steps=20)
