"""Pictures: policies side by side, and which chat held the pool when. Needs matplotlib.

Colours are Okabe and Ito's, which the colour-blind can tell apart; nothing is told by colour alone.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kvalet.errors import ConfigError
from kvalet.sim.figures import Spread, ratio
from kvalet.sim.grid import Cell, baseline_of
from kvalet.sim.report import label, load_name, varying
from kvalet.sim.scenario import LOAD

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
PANELS: Final = (  # figure, title, unit, digits
    ("makespan_s", "makespan", "s", 1),
    ("mean_completion_s", "mean completion", "s", 1),
    ("p95_completion_s", "p95 completion", "s", 1),
    ("longest_wait_s", "longest wait", "s", 1),
    ("cells_copied", "cells copied", "cells", 0),
)
SURE: Final = 1.96  # standard errors, of a 95 % interval of many seeds


def compare(cells: Sequence[Cell], path: Path) -> None:
    """A row of panels for each load, a line in each for every way to share the pool: multiples of
    the first one's mean, with 95 % intervals from the same seeds."""
    loads = list(dict.fromkeys(cell.scenario.load for cell in cells))
    per_load = [[cell for cell in cells if cell.scenario.load == load] for load in loads]
    lines = max(map(len, per_load))
    height = 0.9 + len(loads) * (1.1 + 0.24 * lines)
    figure = Figure(figsize=(2.4 + 2.5 * len(PANELS), height), layout="constrained", dpi=150)
    rows = figure.subfigures(len(loads), 1, squeeze=False)[:, 0]
    for row, group in zip(rows, per_load, strict=True):
        row.suptitle(_load_title(group), fontsize=10, x=0.01, ha="left", fontweight="bold")
        axes = row.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
        for axis, (name, title, unit, digits) in zip(axes, PANELS, strict=True):
            _panel(axis, group, name)
            base = Spread.of(group[0].values(name)).mean
            axis.set_title(f"{title}\n1.0 = {base:,.{digits}f} {unit}", fontsize=9)
        axes[0].set_yticks(range(len(group)), _names(group, cells), fontsize=8)
        axes[0].invert_yaxis()
    save(figure, path)


def _panel(axis: Axes, group: Sequence[Cell], name: str) -> None:
    styles = _styles(group)
    for line, (cell, (colour, marker)) in enumerate(zip(group, styles, strict=True)):
        multiple = ratio(cell.values(name), baseline_of(cell, group).values(name))
        if multiple is not None:
            axis.errorbar(
                multiple.value,
                line,
                xerr=SURE * multiple.se,
                fmt=marker,
                color=colour,
                markersize=5,
                capsize=2,
                elinewidth=1.2,
            )
    axis.axvline(1.0, color="#888888", linewidth=0.8, linestyle="--", zorder=0)
    axis.set_ylim(-0.6, len(group) - 0.4)
    _widen(axis)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, length=2)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _widen(axis: Axes) -> None:
    """Differences of a few percent should look like it."""
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, 0.95), max(high, 1.05))


def _styles(group: Sequence[Cell]) -> list[tuple[str, str]]:
    """A colour for each policy, a marker for each of what else differs."""
    policies = [cell.scenario.preemption.victims for cell in group]
    others = [_key(cell, [n for n in _ways(group) if n != "preempt_policy"]) for cell in group]
    colour = {policy: index for index, policy in enumerate(dict.fromkeys(policies))}
    marker = {other: index for index, other in enumerate(dict.fromkeys(others))}
    return [
        (COLOURS[colour[policy] % len(COLOURS)], MARKERS[marker[other] % len(MARKERS)])
        for policy, other in zip(policies, others, strict=True)
    ]


def _ways(cells: Sequence[Cell]) -> list[str]:
    return [name for name in varying(cells) if name not in LOAD]


def _key(cell: Cell, names: Sequence[str]) -> str:
    values = cell.scenario.values()
    return ", ".join(_short(name, values[name]) for name in names)


def _short(name: str, value: object) -> str:
    """A name says what it is about; a number does not."""
    text = label(value)
    is_name = isinstance(value, str)
    return text if is_name else f"{name.removeprefix('preempt_').replace('_', ' ')} {text}"


def _names(group: Sequence[Cell], cells: Sequence[Cell]) -> list[str]:
    names = _ways(cells)
    return [_key(cell, names) or cell.scenario.preemption.victims for cell in group]


def _load_title(group: Sequence[Cell]) -> str:
    scenario = group[0].scenario
    return (
        f"{load_name(scenario)}; {scenario.ctx_size:,} cells, {scenario.slots.num_slots} slots; "
        f"seeds: {len(group[0].runs)}"
    )


def require_writable(path: Path) -> None:
    """Raises ConfigError for a picture that could not be written."""
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ConfigError(
            f"{path}: the name of a picture ends in one of {', '.join(sorted(kinds))}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{path}: cannot be written")


def save(figure: Figure, path: Path) -> None:
    """Raises ConfigError."""
    try:
        figure.savefig(path, facecolor="white")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
