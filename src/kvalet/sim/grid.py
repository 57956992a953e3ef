"""Every scenario with every seed, in parallel processes; the same results in the same order however
many there are."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from kvalet.sim.costs import CostModel
from kvalet.sim.figures import Figures, figures_of
from kvalet.sim.run import simulate
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import Lengths, Request, draw

Task: TypeAlias = tuple[Scenario, int]


@dataclass(frozen=True, slots=True)
class Load:
    """Where requests come from: a trace, or else a scenario's workload and a seed."""

    costs: CostModel
    trace: tuple[Request, ...] | None = None

    def requests(self, scenario: Scenario, seed: int) -> tuple[Request, ...]:
        if self.trace is not None:
            return self.trace
        lengths = Lengths(scenario.tokens, scenario.ctx_size)
        return draw(
            scenario.workload,
            scenario.arrivals,
            scenario.chats,
            scenario.gap,
            lengths,
            seed,
            scenario.priorities,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    scenario: Scenario
    runs: tuple[Figures, ...]  # one a seed

    def values(self, name: str) -> list[float]:
        return [getattr(figures, name) for figures in self.runs]


def baseline_of(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """The first cell with the same load: what the others are compared with."""
    load = cell.scenario.load
    return next(other for other in cells if other.scenario.load == load)


def run(
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    load: Load,
    jobs: int,
    on_run: Callable[[], None] = lambda: None,
) -> list[Cell]:
    """`on_run` is called after each run."""
    tasks = [(scenario, seed) for scenario in scenarios for seed in seeds]
    found: list[Figures] = []
    for figures in _map(partial(_run_one, load), tasks, min(jobs, len(tasks))):
        found.append(figures)
        on_run()
    count = len(seeds)
    return [
        Cell(scenario, tuple(found[index * count : (index + 1) * count]))
        for index, scenario in enumerate(scenarios)
    ]


def _run_one(load: Load, task: Task) -> Figures:
    scenario, seed = task
    return figures_of(simulate(scenario, load.requests(scenario, seed), load.costs))


def _map(run_one: Callable[[Task], Figures], tasks: list[Task], jobs: int) -> Iterator[Figures]:
    """In the order of `tasks`."""
    if jobs == 1:
        yield from map(run_one, tasks)
        return
    context = multiprocessing.get_context("spawn")  # the same on every system
    with _interrupts_blocked():
        pool = context.Pool(jobs)
    with pool:
        yield from pool.imap(run_one, tasks)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started meanwhile never see a Ctrl-C, from their first moment on: ending them is
    left to their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
