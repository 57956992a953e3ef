"""Cells as a table, as JSON and as CSV: the same seeds give the same bytes."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table

from kvalet.settings import show
from kvalet.sim.costs import CostModel
from kvalet.sim.figures import NAMES, Ratio, Spread, ratio
from kvalet.sim.grid import Cell, baseline_of
from kvalet.sim.scenario import Scenario

COMPARED = ("makespan_s", "mean_completion_s", "longest_wait_s")
DIGITS = 6  # after the point, in JSON and CSV
LEGEND = "±: standard deviation between seeds; of `x first`, standard error of the paired ratio"

COLUMNS = (  # of the table: figure, heading, digits
    ("makespan_s", "makespan s", 1),
    ("mean_completion_s", "mean completion s", 1),
    ("p95_completion_s", "p95 s", 1),
    ("longest_wait_s", "longest wait s", 1),
    ("longest_queue_s", "longest queue s", 1),
    ("top_queue_s", "of the highest priority s", 1),
    ("parks", "parks", 1),
    ("cells_copied", "cells copied", 0),
    ("tokens_recomputed", "recomputed", 0),
    ("utilisation", "pool used", 2),
)


def label(value: object) -> str:
    return "default" if value is None else show(value)


def load_name(scenario: Scenario) -> str:
    """What is asked for; of a trace, its file's name."""
    if scenario.is_trace:
        return scenario.workload
    return f"{scenario.chats} chats, {scenario.workload}, {scenario.arrivals}"


def varying(cells: Sequence[Cell]) -> list[str]:
    """Fields of the scenarios that differ between cells."""
    rows = [cell.scenario.values() for cell in cells]
    return [name for name in rows[0] if any(row[name] != rows[0][name] for row in rows)]


def common(cells: Sequence[Cell]) -> str:
    """What all cells have in common, where it matters to a reader."""
    differing, scenario = varying(cells), cells[0].scenario
    default = Scenario().values()
    always = ["workload", "ctx_size", "parallel"]
    if not scenario.is_trace:
        always += ["arrivals", "chats", "tokens"]
    parts = [
        f"{_heading(name, scenario)} {label(value)}"
        for name, value in scenario.values().items()
        if name not in differing and (name in always or value != default[name])
    ]
    return ", ".join(parts)


def _heading(name: str, scenario: Scenario) -> str:
    return "trace" if scenario.is_trace and name == "workload" else name.replace("_", " ")


def table(cells: Sequence[Cell]) -> Table:
    """Means over seeds with their standard deviation; multiples of the first row of the same load
    with their standard error."""
    found = Table(box=None, pad_edge=False, title_justify="left")
    names = varying(cells)
    for name in names:
        found.add_column(name.replace("_", " "), no_wrap=True)
    shown = [column for column in COLUMNS if _says_something(column[0], cells)]
    for name, heading, _ in shown:
        found.add_column(heading, justify="right")
        if name in COMPARED:
            found.add_column("x first", justify="right")
    for cell in cells:
        values = cell.scenario.values()
        row = [label(values[name]) for name in names]
        base = baseline_of(cell, cells)
        for name, _, digits in shown:
            spread = Spread.of(cell.values(name))
            row.append(_with_error(spread.mean, spread.sd, digits))
            if name in COMPARED:
                multiple = ratio(cell.values(name), base.values(name))
                row.append("-" if multiple is None else _with_error(multiple.value, multiple.se, 2))
        found.add_row(*row)
    return found


def _says_something(name: str, cells: Sequence[Cell]) -> bool:
    """It is not 0 everywhere, nor the same as for all priorities."""
    if name == "top_queue_s" and all(
        cell.values(name) == cell.values("longest_queue_s") for cell in cells
    ):
        return False
    return any(any(cell.values(name)) for cell in cells)


def _with_error(value: float, error: float, digits: int) -> str:
    return f"{value:,.{digits}f} ±{error:,.{digits}f}" if error else f"{value:,.{digits}f}"


def incomplete(cells: Sequence[Cell]) -> Iterator[str]:
    """A line for each cell in which requests failed."""
    for cell in cells:
        failed = sum(run.requests - run.completed for run in cell.runs)
        if failed:
            yield f"{failed} requests failed: {cell.scenario}"


def as_json(cells: Sequence[Cell], seeds: Sequence[int], costs: CostModel) -> str:
    """Means and standard deviations; `vs_first`: multiples of the first cell of the same load, with
    their standard error."""
    found = {
        "costs": asdict(costs),
        "seeds": list(seeds),
        "cells": [
            {
                "scenario": cell.scenario.values(),
                "figures": {name: _rounded(Spread.of(cell.values(name))) for name in NAMES},
                "vs_first": _compared(cell, baseline_of(cell, cells)),
            }
            for cell in cells
        ],
    }
    return json.dumps(found)


def _compared(cell: Cell, base: Cell) -> dict[str, dict[str, float] | None]:
    found: dict[str, dict[str, float] | None] = {}
    for name in COMPARED:
        multiple = ratio(cell.values(name), base.values(name))
        found[name] = None if multiple is None else _rounded(multiple)
    return found


def _rounded(spread: Spread | Ratio) -> dict[str, float]:
    return {name: round(value, DIGITS) for name, value in asdict(spread).items()}


def as_csv(cells: Sequence[Cell], seeds: Sequence[int]) -> str:
    """A row for every run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*cells[0].scenario.values(), "seed", *NAMES])
    for cell in cells:
        scenario = [label(value) for value in cell.scenario.values().values()]
        for seed, run in zip(seeds, cell.runs, strict=True):
            figures = [round(value, DIGITS) for value in asdict(run).values()]
            writer.writerow([*scenario, seed, *figures])
    return text.getvalue()
