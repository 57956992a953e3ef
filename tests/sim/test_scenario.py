"""A scenario is what `kvalet serve` makes of the same flags."""

from dataclasses import asdict, replace

from kvalet.cli import config
from kvalet.cli.serve import scheduler_config
from kvalet.sim.scenario import Scenario

PAGE_BYTES = 737_280
N_CTX = 4096


def test_defaults_are_those_of_serve() -> None:
    served, simulated = asdict(config.ServeConfig()), asdict(Scenario())
    # serve takes one from the model and the other from the trigger
    common = set(served) & set(simulated) - {"ctx_size", "preempt_policy"}
    assert {"preempt_trigger", "preempt_resume", "preempt_ram", "cache_ram", "parallel"} < common
    assert {name: simulated[name] for name in common} == {name: served[name] for name in common}


def test_the_scheduler_is_configured_as_serve_does_it() -> None:
    for flags in ({}, {"preempt_async": "off"}, {"preempt_ram": "-1", "cache_ram": "0"}):
        served = scheduler_config(config.load(flags, {}), N_CTX, PAGE_BYTES)
        given = {name: getattr(config.load(flags, {}), name) for name in flags}
        scenario = Scenario(ctx_size=N_CTX, **given)
        simulated = scenario.scheduler_config(PAGE_BYTES, served.max_queue)
        assert simulated == replace(served, victim_policy=served.victims)
