"""That simulated and live runs are of the same thing (bench/simulated.py)."""

from pathlib import Path

import pytest
from bench.simulated import CONFIGURATIONS, Live, body_of, flags_of, load_of

from bench import simulated
from kvalet.bench.harness import FIRST, measure
from kvalet.bench.target import Where
from kvalet.cli import commands, config
from kvalet.settings import changed
from kvalet.sim.costs import CostModel
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import Request
from tests.bench.streams import chat, moments, played
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


def test_both_have_the_same_figures() -> None:
    one = played([chat("0", moments("sent 1, piece 4")), chat("1", moments("sent 2, piece 9"))])
    (live,) = Live().rows({"ample": one})
    said = simulated.simulated(["ample"], CostModel()).rows["ample"]
    assert (live.figures["makespan s"], live.figures["mean completion s"]) == (8.0, 5.0)
    assert live.figures["parks"] is None
    assert set(said.figures) <= set(live.figures)
    assert said.figures["parks"] == 0


def test_conversations_are_played_on_a_real_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chats that do not fit together, the second with a turn that follows."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", n_ctx_train=256)
    requests = (
        Request(0, 0.0, num_prompt=60, num_output=120, max_tokens=120),
        Request(1, 0.0, num_prompt=60, num_output=120, max_tokens=120),
        Request(1, 0.0, num_prompt=200, num_output=8, max_tokens=8, pause_s=0.2),
    )
    monkeypatch.setattr(simulated, "load_of", lambda name: requests)
    monkeypatch.setitem(CONFIGURATIONS, "two", changed(Scenario(), ctx_size=256, parallel=2))
    (turns,) = measure(print, Where(model=str(model)), Live(("two",)))
    row = turns[FIRST].rows["two"]
    assert not turns[FIRST].faults
    assert (row.figures["complete"], row.figures["failed"]) == (3, 0)
    assert (row.figures["parks"] or 0) >= 1
    assert (row.figures["makespan s"] or 0) > (row.figures["mean completion s"] or 0) > 0
