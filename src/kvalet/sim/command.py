"""`kvalet simulate`: results on stdout, everything else on stderr."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvalet.errors import ConfigError
from kvalet.sim import calibration, grid, report, trace
from kvalet.sim.costs import CostModel
from kvalet.sim.grid import Cell, Load
from kvalet.sim.options import Options
from kvalet.sim.regression import SLOW

Picture: TypeAlias = Callable[[Sequence[Cell], Load], None]

PIPED_WIDTH = 240  # columns, where there is no terminal to say


def run(options: Options) -> int:
    """0 if every request was answered, else 1. Raises ConfigError."""
    if options.calibrate:
        return _calibrate(options.calibrate, options.costs)
    pictures = _pictures(options)
    load = _load(options)
    cells = _cells(options, load)
    _print(options, cells, load.costs)
    for draw in pictures:
        draw(cells, load)
    failures = list(report.incomplete(cells))
    sys.stderr.writelines(f"{line}\n" for line in failures)
    return 1 if failures else 0


def _load(options: Options) -> Load:
    costs = CostModel.load(options.costs) if options.costs else CostModel()
    if options.trace is None:
        return Load(costs)
    smallest = min(scenario.ctx_size for scenario in options.scenarios)
    return Load(costs, trace.load(options.trace, smallest))


def _cells(options: Options, load: Load) -> list[Cell]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        total = len(options.scenarios) * len(options.seeds)
        task = progress.add_task(f"{total} runs", total=total)
        return grid.run(
            options.scenarios, options.seeds, load, options.jobs, lambda: progress.advance(task)
        )


def _print(options: Options, cells: Sequence[Cell], costs: CostModel) -> None:
    if options.form == "json":
        sys.stdout.write(report.as_json(cells, options.seeds, costs) + "\n")
    elif options.form == "csv":
        sys.stdout.write(report.as_csv(cells, options.seeds))
    else:
        console = _console()
        console.print(f"{report.common(cells)}; seeds {_range(options.seeds)}; {costs.source}\n")
        console.print(report.table(cells))
        if len(options.seeds) > 1:
            console.print(f"\n{report.LEGEND}")


def _range(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def _pictures(options: Options) -> list[Picture]:
    """What is to be drawn afterwards; that it can be is known before hours are spent."""
    if options.plot is None and options.timeline is None:
        return []
    try:
        from kvalet.sim import gantt, plot
    except ModuleNotFoundError:
        raise ConfigError(
            "--plot and --timeline need matplotlib: pip install 'kvalet[plot]'"
        ) from None
    if options.plot == options.timeline:
        raise ConfigError("--plot and --timeline name the same file")
    pictures: list[Picture] = []
    if options.plot is not None:
        plot.require_writable(options.plot)
        path = options.plot
        pictures.append(lambda cells, load: plot.compare(cells, path))
    if options.timeline is not None:
        plot.require_writable(options.timeline)
        chart, scenario, seed = options.timeline, options.scenarios[0], options.seeds[0]
        pictures.append(
            lambda cells, load: gantt.draw(
                scenario, load.requests(scenario, seed), load.costs, chart
            )
        )
    return pictures


def _calibrate(record: Path, target: Path | None) -> int:
    if target is None:
        raise ConfigError("--calibrate needs --costs, the file to write to")
    found = calibration.fit(calibration.load(record), record.name)
    found.costs.save(target)
    residuals = Table("predicted", "of", "median error", "p90 error", "sum", "slow", box=None)
    for item in found.residuals:
        residuals.add_row(
            item.what,
            str(item.count),
            f"{item.median:.1%}",
            f"{item.p90:.1%}",
            f"x {item.total:.3f}",
            str(item.num_slow),
        )
    console = _console()
    console.print(residuals)
    if found.kept:
        named = ", ".join(found.kept)
        console.print(f"left at their defaults, since the record does not tell them: {named}")
    for item in found.residuals:
        if item.is_doubtful:
            console.print(
                f"{item.num_slow} of {item.count} {item.what} took over {SLOW:g} times what is "
                "predicted: record again, on a machine with nothing else to do"
            )
    return 0
