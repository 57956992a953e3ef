"""Ways to choose who is parked and who enters, tried on 24 loads in virtual time.

    python -m bench.candidates [VICTIM+ORDER ...] [--seeds N] [--first-seed N]
        [-np N] [--by-workload]

Everything relative to `smallest+head`. Makespan and mean completion are means of the loads' ratios;
waits are ratios of sums, since many loads have none. Without names: every candidate of this file,
one with the default of the other. What is worth having moves to `kvalet.core.policy`.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import cast

from rich.progress import Progress

from kvalet.bench.report import markdown
from kvalet.core import policy
from kvalet.core.policy import NO_LIMIT, VictimKey
from kvalet.core.sequence import Sequence as Chat
from kvalet.settings import changed
from kvalet.sim import grid
from kvalet.sim.costs import CostModel
from kvalet.sim.figures import Ratio, ratio
from kvalet.sim.grid import Cell, Load
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import ARRIVALS, WORKLOADS

BASELINE = ("smallest", "head")
POOLS = (2048, 4096)
ALL = "all"
HEADINGS = (
    *("policy", "loads", "makespan", "mean completion"),
    *("longest wait", "longest queue"),
)
AVERAGED = ("makespan_s", "mean_completion_s")
SUMMED = ("longest_wait_s", "longest_queue_s")


def left(chat: Chat) -> int:
    """Tokens that it may still generate."""
    limit = chat.request.max_new_tokens
    allowed = NO_LIMIT if limit is None else limit
    return allowed - chat.num_generated


def when_done(chat: Chat) -> int:
    """Cells that it may hold in the end."""
    return len(chat.tokens) + left(chat)


def work_left(chat: Chat) -> int:
    """Cells seen by all rows still to come."""
    return left(chat) * (chat.num_computed + when_done(chat)) // 2


def to_copy(chat: Chat) -> int:
    """Pages that a park has to copy, about."""
    return len(chat.table) - min(chat.num_mirrored, len(chat.table))


def to_copy_per_page(chat: Chat) -> float:
    return to_copy(chat) / max(1, len(chat.table))


VICTIMS: dict[str, Callable[[Chat], tuple[float, ...]]] = {
    "most left": lambda chat: (-left(chat),),
    "came in last": lambda chat: (-chat.line_ticket,),
    "came in first": lambda chat: (chat.line_ticket,),
    "most work left": lambda chat: (-work_left(chat),),
    "least work left": lambda chat: (work_left(chat),),
    "fewest left": lambda chat: (left(chat),),
    "largest when done": lambda chat: (-when_done(chat),),
    "smallest when done": lambda chat: (when_done(chat),),
    "fewest parks, then smallest": lambda chat: (chat.num_preempts, chat.num_computed),
    "fewest parks, then most left": lambda chat: (chat.num_preempts, -left(chat)),
    "fewest pages to copy": lambda chat: (to_copy(chat),),
    "least to copy per page": lambda chat: (to_copy_per_page(chat),),
}


def is_new(chat: Chat) -> bool:
    return chat.num_preempts == 0


ORDERS: dict[str, Callable[[Chat], tuple[float, ...]]] = {
    "parked first, once": lambda chat: (chat.num_preempts != 1,),
    "parked first, three times": lambda chat: (not 1 <= chat.num_preempts <= 3,),
    "parked first, most often parked": lambda chat: (-chat.num_preempts,),
    "parked first, fewest left": lambda chat: (is_new(chat), 0 if is_new(chat) else left(chat)),
    "parked first, oldest": lambda chat: (is_new(chat), 0 if is_new(chat) else chat.seq_id),
    "by time, a park counts as 2 places": lambda chat: (chat.line_ticket - 2 * chat.num_preempts,),
    "by time, a park counts as 8 places": lambda chat: (chat.line_ticket - 8 * chat.num_preempts,),
    "fewest left": lambda chat: (left(chat),),
    "smallest": lambda chat: (len(chat.tokens),),
}


def victim_key(key: Callable[[Chat], tuple[float, ...]]) -> VictimKey:
    return lambda chat: (*key(chat), -chat.seq_id)


def line_key(key: Callable[[Chat], tuple[float, ...]]) -> VictimKey:
    return lambda chat: (-chat.request.priority, *key(chat), chat.line_ticket)


# Processes that simulate import this module too, and so find them.
cast("dict[str, VictimKey]", policy.VICTIM_POLICIES).update(
    {name: victim_key(key) for name, key in VICTIMS.items()}
)
cast("dict[str, VictimKey]", policy.LINE_ORDERS).update(
    {name: line_key(key) for name, key in ORDERS.items()}
)


def main() -> int:
    args = arguments()
    pairs = args.pairs or [(name, "head") for name in policy.VICTIM_POLICIES if name != "smallest"]
    if not args.pairs:
        pairs += [("smallest", name) for name in policy.LINE_ORDERS if name != "head"]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    cells = simulate([BASELINE, *pairs], args.parallel, seeds)
    names = (*WORKLOADS, ALL) if args.by_workload else (ALL,)
    rows = (
        [", ".join(one), name, *compared(of(name, cells[one]), of(name, cells[BASELINE]))]
        for one in pairs
        for name in names
    )
    print(*markdown(HEADINGS, rows), sep="\n")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pairs", nargs="*", type=pair, metavar="VICTIM+ORDER")
    parser.add_argument("-np", "--parallel", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--by-workload", action="store_true")
    return parser.parse_args()


def pair(given: str) -> tuple[str, str]:
    victim, _, order = given.partition("+")
    if victim not in policy.VICTIM_POLICIES or order not in policy.LINE_ORDERS:
        known = f"{', '.join(policy.VICTIM_POLICIES)} + {', '.join(policy.LINE_ORDERS)}"
        raise argparse.ArgumentTypeError(f"expected one of {known}, not {given!r}")
    return victim, order


def simulate(
    pairs: Sequence[tuple[str, str]], num_slots: int, seeds: Sequence[int]
) -> dict[tuple[str, str], list[Cell]]:
    """The cells of all loads, in the same order for every pair."""
    loads = list(itertools.product(WORKLOADS, ARRIVALS, POOLS))
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
        for workload, arrivals, cells in loads
    ]
    with Progress(transient=True) as progress:
        task = progress.add_task("runs", total=len(scenarios) * len(seeds))
        found = grid.run(
            scenarios,
            list(seeds),
            Load(CostModel()),
            os.cpu_count() or 1,
            lambda: progress.advance(task),
        )
    count = len(loads)
    return {one: found[i * count : (i + 1) * count] for i, one in enumerate(pairs)}


def of(workload: str, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if workload in (ALL, cell.scenario.workload)]


def compared(cells: Sequence[Cell], bases: Sequence[Cell]) -> Iterator[str]:
    for name in AVERAGED:
        yield shown(mean_ratio(values_of(cells, name), values_of(bases, name)))
    for name in SUMMED:
        multiple = ratio(by_seed(cells, name), by_seed(bases, name))
        yield "-" if multiple is None else shown(multiple)


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


def by_seed(cells: Sequence[Cell], name: str) -> list[float]:
    """Sums over loads."""
    return [sum(values) for values in zip(*values_of(cells, name), strict=True)]


def shown(multiple: Ratio) -> str:
    return f"{multiple.value:.3f} ± {multiple.se:.3f}"


if __name__ == "__main__":
    sys.exit(main())
