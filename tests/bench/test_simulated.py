"""That simulated and live runs are of the same thing (bench/simulated)."""

from pathlib import Path

import pytest
from bench.simulated.__main__ import CONFIGURATIONS, Comparison, load_of
from bench.simulated.live import Outcome, body_of, flags_of, play

from kvalet.cli import commands, config
from kvalet.settings import changed
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import Request
from tests.engine.tiny_models import write_tiny_llama


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_server_is_started_as_the_scenario_says(name: str) -> None:
    scenario = CONFIGURATIONS[name]
    args = commands.parser().parse_args(["serve", *flags_of(scenario)])
    served = config.load(vars(args), {})
    assert served.load.ctx_size == scenario.ctx_size
    groups = ("slots", "steps", "preemption", "copies", "memory")
    assert [getattr(served, group) for group in groups] == [
        getattr(scenario, group) for group in groups
    ]


def test_six_configurations_and_every_workload() -> None:
    assert len(CONFIGURATIONS) >= 6
    workloads = {scenario.workload for scenario in CONFIGURATIONS.values()}
    assert workloads == {"measured", "uniform", "heavy", "agents"}
    assert all(load_of(name) == load_of(name) for name in CONFIGURATIONS)


def test_an_answer_is_as_long_as_in_the_simulation() -> None:
    turn = Request(0, 0.0, num_prompt=3, num_output=20, max_tokens=90)
    body = body_of(turn, [7, 8, 9])
    assert (body["prompt"], body["n_predict"], body["ignore_eos"]) == ([7, 8, 9], 20, True)


def test_an_error_is_against_the_median_live_run() -> None:
    live = [Outcome(seconds, 1.0, 3, 0) for seconds in (9.0, 10.0, 20.0)]
    found = Comparison("x", live, Outcome(11.0, 1.0, 3, 0))
    assert found.error("makespan_s") == pytest.approx(0.1)


def test_conversations_are_played_on_a_real_server(tmp_path: Path) -> None:
    """Two chats that do not fit together, the second with a turn that follows."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", n_ctx_train=256)
    scenario = changed(Scenario(), ctx_size=256, parallel=2)
    requests = (
        Request(0, 0.0, num_prompt=60, num_output=120, max_tokens=120),
        Request(1, 0.0, num_prompt=60, num_output=120, max_tokens=120),
        Request(1, 0.0, num_prompt=200, num_output=8, max_tokens=8, pause_s=0.2),
    )
    outcome = play(scenario, requests, str(model))
    assert outcome.parks >= 1
    assert outcome.makespan_s > outcome.completion_s > 0
