"""The arithmetic of costs, and their file."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvalet.core.plan import Draw, Grant, PageId, Phase, SeqId, StepPlan
from kvalet.core.request import SamplingParams
from kvalet.core.work import StepWork, work_of
from kvalet.engine.ggml.graphs import bucket
from kvalet.errors import ConfigError
from kvalet.sim.costs import CostModel, graph_rows
from tests.sim.builders import NOTHING

PAGES = (PageId(0), PageId(1))


def _grant(seq_id: int, start: int, num_tokens: int) -> Grant:
    draw = Draw(SamplingParams(), 0)
    return Grant(SeqId(seq_id), Phase.PREFILL, start, (1,) * num_tokens, PAGES, (draw,))


def test_depth_counts_the_cells_that_each_row_sees() -> None:
    plan = StepPlan(1, grants=(_grant(0, 10, 1), _grant(1, 20, 1), _grant(2, 4, 3)))
    assert work_of(plan) == StepWork(
        decode_rows=2, decode_depth=11 + 21, prefill_rows=3, prefill_depth=5 + 6 + 7, draws=3
    )


def test_a_step_costs_the_sum_of_its_parts() -> None:
    costs = CostModel(
        step_s=1.0,
        row_s=2.0,
        draw_s=3.0,
        decode_cell_s=0.5,
        prefill_cell_s=0.25,
        host_s=7.0,
        host_row_s=0.5,
    )
    few = StepWork(decode_rows=2, decode_depth=10, prefill_rows=4, prefill_depth=8, draws=3)
    assert costs.compute_s(few) == 1 + 6 * 2 + 3 * 3 + 10 * 0.5 + 8 * 0.25
    many = StepWork(decode_rows=1, prefill_rows=20, draws=1)  # a graph of 24 rows
    assert costs.compute_s(many) == 1 + 24 * 2 + 3
    assert costs.outside_s(3) == 8.5


def test_graphs_have_the_widths_of_the_engine_s() -> None:
    assert [graph_rows(count) for count in (1, 8, 9, 64, 65, 512)] == [1, 8, 16, 64, 96, 512]
    for count in range(1, 513):
        assert graph_rows(count) == bucket(count, 1, 512)


def test_the_defaults_are_what_was_measured() -> None:
    """docs/lab-log.md, "The simulator's costs": 1 and 4 chats about 300 deep, and a prompt. Steps
    of one kind differ by 15 % between runs of the record."""
    costs = CostModel()
    prompt_s = sum(
        costs.compute_s(StepWork(prefill_rows=rows, prefill_depth=rows * depth, draws=1))
        for rows, depth in ((512, 256), (512, 768), (437, 1242))
    )
    assert prompt_s == pytest.approx(4.63, rel=0.15)
    for count, compute_ms, step_ms in ((1, 8.62, 10.02), (4, 21.45, 23.11)):
        compute_s = costs.compute_s(StepWork(count, count * 300, draws=count))
        assert 1e3 * compute_s == pytest.approx(compute_ms, rel=0.15)
        assert 1e3 * (compute_s + costs.outside_s(count)) == pytest.approx(step_ms, rel=0.15)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    costs = replace(NOTHING, step_s=0.125, source="a record")
    costs.save(tmp_path / "costs.json")
    assert CostModel.load(tmp_path / "costs.json") == costs


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"step_s": -1}', "step_s: Input should be greater than or equal to 0"),
        ('{"step_s": "1"}', "step_s: Input should be a valid number"),
        ('{"page_bytes": 0}', "page_bytes: Input should be greater than or equal to 1"),
        ('{"stop_s": 1}', "stop_s: Unexpected keyword argument"),
        ("[]", "Input should be an object"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_field(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        CostModel.load(path)
    assert str(error.value).startswith(f"{path}: {complaint}")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        CostModel.load(tmp_path / "none.json")
