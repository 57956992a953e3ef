"""Many runs, in one process or in several."""

import pytest

from kvalet.settings import changed
from kvalet.sim import grid
from kvalet.sim.costs import CostModel
from kvalet.sim.grid import Cell, Load, baseline_of
from tests.sim.builders import PRESSED, request

SCENARIOS = [
    changed(PRESSED, preempt_policy=policy, workload=workload)
    for workload in ("uniform", "agents")
    for policy in ("smallest", "largest")
]
LOAD = Load(CostModel())


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return grid.run(SCENARIOS, [1, 2], LOAD, jobs=1)


def test_results_do_not_depend_on_the_number_of_processes(cells: list[Cell]) -> None:
    assert grid.run(SCENARIOS, [1, 2], LOAD, jobs=2) == cells


def test_cells_come_in_order_with_a_run_for_each_seed(cells: list[Cell]) -> None:
    assert [cell.scenario for cell in cells] == SCENARIOS
    assert all(len(cell.runs) == 2 for cell in cells)
    assert cells[0].runs[0] != cells[0].runs[1]
    assert cells[0].runs[0] == grid.run(SCENARIOS[:1], [1], LOAD, jobs=1)[0].runs[0]


def test_every_run_is_counted() -> None:
    counted: list[None] = []
    grid.run(SCENARIOS[:2], [1], LOAD, 1, lambda: counted.append(None))
    assert len(counted) == 2


def test_a_cell_is_compared_with_the_first_of_the_same_load(cells: list[Cell]) -> None:
    baselines = [baseline_of(cell, cells) for cell in cells]
    assert baselines == [cells[0], cells[0], cells[2], cells[2]]


def test_a_trace_takes_the_place_of_a_workload() -> None:
    load = Load(CostModel(), (request(0, 20, 10), request(1, 20, 10)))
    (cell,) = grid.run(SCENARIOS[:1], [1], load, jobs=1)
    assert cell.runs[0].requests == 2
