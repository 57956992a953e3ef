"""A fit finds the costs that made a record."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest

from kvalet.core.work import StepWork
from kvalet.errors import ConfigError
from kvalet.sim.calibration import StepRecord, fit, load
from kvalet.sim.costs import CostModel

TRUE = CostModel(
    step_s=3e-3,
    row_s=5e-3,
    draw_s=1e-3,
    decode_cell_s=2e-6,
    prefill_cell_s=7e-7,
    beside_share=0.4,
    host_s=8e-4,
    host_row_s=2e-4,
    page_out_s=2e-4,
    page_in_s=3e-4,
    page_bytes=16_384,
)
NAMES = [name for name in asdict(TRUE) if name not in ("page_bytes", "source")]


def _steps(count: int, *, copying: bool = True, noise: float = 0.0) -> list[StepRecord]:
    """As the cost model has it. Every twelfth step begins a copy, out and in by turns, that runs
    for three steps and lands in the last."""
    random = Random(5)
    found: list[StepRecord] = []
    for index in range(count):
        copies, turn = divmod(index, 12)
        pages = (9 + 4 * (copies % 5), 0) if copies % 2 else (0, 16 + 3 * (copies % 5))
        copy_s = (pages[0] * TRUE.page_out_s + pages[1] * TRUE.page_in_s) / 3
        found.append(
            _step(
                random,
                copy_s if copying and turn < 3 else 0.0,
                pages if copying and turn == 2 else (0, 0),
                1 + noise * random.uniform(-1, 1),
            )
        )
    return found


def _step(random: Random, copy_s: float, landed: tuple[int, int], factor: float) -> StepRecord:
    chats, prompts = random.randint(1, 4), random.choice((0, 0, 0, 1))
    rows = prompts * random.randint(2, 400)
    depth = sum(random.randint(100, 1500) for _ in range(chats))
    draws = chats + prompts * random.randint(0, 1)
    work = StepWork(chats, depth, rows, rows * random.randint(10, 900), draws)
    compute_s = factor * (TRUE.compute_s(work) + TRUE.beside_share * copy_s)
    sequences = chats + prompts
    return StepRecord(
        sequences=sequences,
        decode_rows=work.decode_rows,
        decode_depth=work.decode_depth,
        prefill_rows=work.prefill_rows,
        prefill_depth=work.prefill_depth,
        draws=work.draws,
        compute_s=compute_s,
        step_s=compute_s + TRUE.outside_s(sequences),
        page_bytes=TRUE.page_bytes,
        pages_out=landed[0],
        pages_in=landed[1],
        copy_s=copy_s,
    )


def test_known_costs_are_recovered() -> None:
    found = fit(_steps(400), "a record")
    for name in NAMES:
        assert getattr(found.costs, name) == pytest.approx(getattr(TRUE, name), rel=1e-6), name
    assert found.kept == ()
    assert found.costs.page_bytes == TRUE.page_bytes
    assert found.costs.source == "a record, 400 steps"
    assert [item.what for item in found.residuals] == [
        "steps, computing",
        "steps, in all",
        "copies",
    ]
    assert all(item.p90 < 1e-6 for item in found.residuals)


def test_noise_is_averaged_out_and_reported() -> None:
    found = fit(_steps(3000, noise=0.2), "a record")
    for name in ("step_s", "row_s", "draw_s", "decode_cell_s"):
        assert getattr(found.costs, name) == pytest.approx(getattr(TRUE, name), rel=0.15), name
    compute = found.residuals[0]
    assert 0.08 < compute.median < 0.12  # uniform up to 20 %
    assert 0.16 < compute.p90 < 0.20
    assert compute.total == pytest.approx(1.0, abs=0.01)


def test_moments_in_which_the_machine_did_something_else_do_not_count() -> None:
    steps = [
        replace(step, compute_s=4 * step.compute_s) if index % 10 == 0 else step
        for index, step in enumerate(_steps(1000))
    ]
    found = fit(steps, "a record")
    assert found.costs.row_s == pytest.approx(TRUE.row_s, rel=0.01)
    assert found.costs.step_s == pytest.approx(TRUE.step_s, rel=0.05)
    assert found.residuals[0].num_slow == 100
    assert found.residuals[0].total < 0.85
    assert not found.residuals[0].is_doubtful


def test_a_busy_machine_is_told() -> None:
    steps = [
        replace(step, compute_s=4 * step.compute_s) if index % 5 == 0 else step
        for index, step in enumerate(_steps(1000))
    ]
    assert fit(steps, "a record").residuals[0].is_doubtful


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.3])
def test_noise_does_not_make_predictions_too_low(sigma: float) -> None:
    """Sums are what a makespan is: noise with a mean of 1 should leave them alone."""
    random = Random(3)
    steps = [
        replace(step, compute_s=factor * step.compute_s, step_s=factor * step.compute_s)
        for step in _steps(3000)
        for factor in (random.lognormvariate(-(sigma**2) / 2, sigma),)
    ]
    assert fit(steps, "a record").residuals[0].total == pytest.approx(1.0, abs=0.03)


def test_a_record_without_time_costs_nothing() -> None:
    steps = [replace(step, compute_s=0.0, step_s=0.0, copy_s=0.0) for step in _steps(100)]
    costs = fit(steps, "a record").costs
    assert (costs.step_s, costs.row_s, costs.host_s) == (0, 0, 0)


def test_copies_within_steps_are_neither_beside_them_nor_the_host_s() -> None:
    steps = [
        replace(
            step,
            is_async=False,
            compute_s=TRUE.compute_s(step.work),
            step_s=TRUE.compute_s(step.work) + TRUE.outside_s(step.sequences) + step.copy_s,
        )
        for step in _steps(400)
    ]
    found = fit(steps, "a record")
    assert found.costs.host_s == pytest.approx(TRUE.host_s)
    assert found.costs.page_in_s == pytest.approx(TRUE.page_in_s)
    assert found.kept == ("beside_share",)
    assert all(item.p90 < 1e-6 for item in found.residuals)


def test_copies_of_one_kind_and_size_keep_their_defaults() -> None:
    steps = _steps(200, copying=False)
    steps[20] = replace(steps[20], pages_out=3, pages_in=2, copy_s=0.01)
    found = fit(steps, "a record")
    assert {"page_out_s", "page_in_s"} <= set(found.kept)


def test_a_record_of_two_models_is_refused() -> None:
    steps = _steps(50)
    steps[7] = replace(steps[7], page_bytes=1)
    with pytest.raises(ConfigError, match="more than one page_bytes"):
        fit(steps, "a record")


def test_what_was_not_recorded_keeps_its_default() -> None:
    found = fit(_steps(400, copying=False), "a record")
    assert found.kept == ("beside_share", "page_out_s", "page_in_s")
    assert found.costs.page_out_s == CostModel().page_out_s
    assert found.costs.row_s == pytest.approx(TRUE.row_s)


def test_a_cost_is_never_negative() -> None:
    steps = [
        StepRecord(
            1 + i % 4, 1 + i % 4, 100 * (i % 7), 0, 0, i % 2, 0.01 - 1e-4 * (i % 7), 0.02, 64
        )
        for i in range(100)
    ]
    costs = fit(steps, "a record").costs
    assert costs.decode_cell_s == 0
    assert min(getattr(costs, name) for name in NAMES) >= 0


def test_a_record_of_one_kind_of_step_is_refused() -> None:
    steps = [StepRecord(4, 4, 400 + i, 0, 0, 4, 0.02, 0.03, 64) for i in range(50)]
    with pytest.raises(ConfigError, match=r"does not tell step_s, row_s.* apart"):
        fit(steps, "a record")
    with pytest.raises(ConfigError, match="there is no step in it"):
        fit([], "a record")


def test_a_record_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    steps = _steps(3)
    path.write_text("".join(json.dumps(asdict(step)) + "\n" for step in steps))
    assert load(path) == steps
    path.write_text(json.dumps({**asdict(steps[0]), "step_s": None}) + "\n")
    with pytest.raises(ConfigError, match=r"record\.jsonl, line 1: step_s: "):
        load(path)
    path.write_text(json.dumps({**asdict(steps[0]), "decode_depth": 10**400}) + "\n")
    with pytest.raises(ConfigError, match=r"record\.jsonl, line 1: decode_depth: "):
        load(path)
