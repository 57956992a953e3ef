"""Ways to choose who is parked and who enters, tried on 24 loads in virtual time.

    python -m bench.candidates [VICTIM+ORDER ...] [--seeds N] [--first-seed N]
        [-np N] [--by-workload]

Everything relative to `smallest+head`. Makespan and mean completion are means of the loads' ratios;
waits are ratios of sums, since many loads have none. Without names: every policy, one with the
default of the other. A candidate is added to TRIED_VICTIMS or TRIED_ORDERS; what is worth having
moves to `kvalet.core.policy`.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import cast

from kvalet.bench.report import markdown
from kvalet.core import policy
from kvalet.core.policy import VictimKey
from kvalet.settings import changed
from kvalet.sim import grid
from kvalet.sim.costs import CostModel
from kvalet.sim.figures import Ratio, ratio
from kvalet.sim.grid import Cell, Load
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import ARRIVALS, WORKLOADS

TRIED_VICTIMS: Mapping[str, VictimKey] = {
    "fewest parks": lambda seq: (seq.num_preempts, seq.num_computed, -seq.seq_id),
}
TRIED_ORDERS: Mapping[str, VictimKey] = {
    "parked first, once": lambda seq: (
        *(-seq.request.priority, seq.num_preempts != 1, seq.line_ticket),
    ),
}
# Processes that simulate import this module too, and so find them.
cast("dict[str, VictimKey]", policy.VICTIM_POLICIES).update(TRIED_VICTIMS)
cast("dict[str, VictimKey]", policy.LINE_ORDERS).update(TRIED_ORDERS)
VICTIMS, ORDERS = list(policy.VICTIM_POLICIES), list(policy.LINE_ORDERS)

BASELINE = ("smallest", "head")
ALL = "all"
LOADS = list(itertools.product(WORKLOADS, ARRIVALS, (2048, 4096)))  # and cells of the pool
HEADINGS = (
    *("policy", "loads", "makespan", "mean completion"),
    *("longest wait", "longest queue"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pairs", nargs="*", type=pair, metavar="VICTIM+ORDER")
    parser.add_argument("-np", "--parallel", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--by-workload", action="store_true")
    args = parser.parse_args()
    every = [(victim, "head") for victim in VICTIMS] + [("smallest", order) for order in ORDERS]
    pairs = args.pairs or [pair for pair in every if pair != BASELINE]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    cells = simulate([BASELINE, *pairs], args.parallel, seeds)
    rows = (
        [", ".join(one), name, *compared(of(name, cells[one]), of(name, cells[BASELINE]))]
        for one in pairs
        for name in ((*WORKLOADS, ALL) if args.by_workload else (ALL,))
    )
    print(*markdown(HEADINGS, rows), sep="\n")
    return 0


def pair(given: str) -> tuple[str, str]:
    victim, _, order = given.partition("+")
    if victim not in VICTIMS or order not in ORDERS:
        known = f"{', '.join(VICTIMS)} + {', '.join(ORDERS)}"
        raise argparse.ArgumentTypeError(f"expected one of {known}, not {given!r}")
    return victim, order


def simulate(
    pairs: Sequence[tuple[str, str]], num_slots: int, seeds: Sequence[int]
) -> dict[tuple[str, str], list[Cell]]:
    """The cells of all loads, in the same order for every pair."""
    scenarios = [
        changed(
            Scenario(),
            workload=workload,
            arrivals=arrivals,
            ctx_size=cells,
            parallel=num_slots,
            preempt_policy=victim,
            preempt_resume=order,
        )
        for victim, order in pairs
        for workload, arrivals, cells in LOADS
    ]
    jobs = os.cpu_count() or 1
    found = grid.run(scenarios, list(seeds), Load(CostModel()), jobs, lambda: None)
    return {one: found[i * len(LOADS) : (i + 1) * len(LOADS)] for i, one in enumerate(pairs)}


def of(workload: str, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if workload in (ALL, cell.scenario.workload)]


def compared(cells: Sequence[Cell], bases: Sequence[Cell]) -> Iterator[str]:
    for name in ("makespan_s", "mean_completion_s"):
        yield shown(mean_ratio(values_of(cells, name), values_of(bases, name)))
    for name in ("longest_wait_s", "longest_queue_s"):
        sums, base_sums = (
            [sum(values) for values in zip(*values_of(some, name), strict=True)]
            for some in (cells, bases)
        )
        yield shown(ratio(sums, base_sums))


def mean_ratio(values: Sequence[Sequence[float]], bases: Sequence[Sequence[float]]) -> Ratio:
    """Mean over loads of the ratios of means over seeds; its error from what remains of each seed
    over all loads, since one seed's loads are alike. Both: by load, then by seed."""
    means = [fmean(base) for base in bases]
    ratios = [fmean(some) / mean for some, mean in zip(values, means, strict=True)]
    residuals = [
        [(y - one * x) / mean for y, x in zip(some, base, strict=True)]
        for some, base, one, mean in zip(values, bases, ratios, means, strict=True)
    ]
    by_seed = [fmean(seed) for seed in zip(*residuals, strict=True)]
    error = stdev(by_seed) / sqrt(len(by_seed)) if len(by_seed) > 1 else 0.0
    return Ratio(fmean(ratios), error)


def values_of(cells: Sequence[Cell], name: str) -> list[list[float]]:
    return [cell.values(name) for cell in cells]


def shown(multiple: Ratio | None) -> str:
    return "-" if multiple is None else f"{multiple.value:.3f} ± {multiple.se:.3f}"


if __name__ == "__main__":
    sys.exit(main())
