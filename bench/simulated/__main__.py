"""Simulated runs beside live ones of the same requests, in several configurations.

    python -m bench.simulated [--costs FILE] [--rounds 2] [--only NAME] [-m MODEL]

The costs should be of this machine and this model (`kvalet simulate --calibrate`). Rounds of all
configurations follow each other, so that a slow minute does not fall on one alone. The last line
is JSON.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.simulated.live import Outcome, flags_of, play

from kvalet.bench.report import begin, circumstances, markdown, spread
from kvalet.cli.signals import end_on_sigterm
from kvalet.errors import KvaletError
from kvalet.settings import changed
from kvalet.sim.costs import CostModel
from kvalet.sim.figures import figures_of
from kvalet.sim.grid import Load
from kvalet.sim.run import simulate
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import Request

SEED = 1
APART_S = 0.02


def scenario(**values: object) -> Scenario:
    """Of the values that are not the defaults, by name."""
    return changed(Scenario(), **values)


CONFIGURATIONS: Mapping[str, Scenario] = {
    "ample": scenario(chats=4, tokens=500, ctx_size=4096),
    "four chats": scenario(chats=4),
    "four, largest": scenario(chats=4, preempt_policy="largest", preempt_resume="pass"),
    "four, recomputed": scenario(chats=4, preempt_ram=0, cache_ram=0),
    "eight, 8 slots": scenario(tokens=400, ctx_size=1024, parallel=8),
    "uniform": scenario(workload="uniform", arrivals="poisson", tokens=500),
    "uniform, no copier": scenario(
        workload="uniform",
        arrivals="staggered",
        tokens=400,
        ctx_size=1024,
        preempt_async=False,
        preempt_mirror=False,
    ),
    "heavy": scenario(workload="heavy", tokens=500, parallel=8, preempt_resume="parked"),
    "agents": scenario(workload="agents", arrivals="poisson", chats=4, tokens=500),
    "watermark": scenario(
        chats=6, tokens=400, ctx_size=1024, preempt_trigger="watermark", preempt_policy="smallest"
    ),
}
HEADINGS = (
    *("configuration", "makespan live s", "simulated", "error"),
    *("mean completion live s", "simulated", "error", "parks live", "simulated"),
    *("recomputed live", "simulated"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    name: str
    live: Sequence[Outcome]  # one a round
    simulated: Outcome

    def error(self, of: str) -> float:
        """Of the simulation, against the median of the live runs."""
        live: float = statistics.median(getattr(outcome, of) for outcome in self.live)
        simulated: float = getattr(self.simulated, of)
        return simulated / live - 1

    def cells(self) -> Iterator[str]:
        yield self.name
        for name in ("makespan_s", "completion_s"):
            yield spread([getattr(outcome, name) for outcome in self.live], 1)
            yield f"{getattr(self.simulated, name):.1f}"
            yield f"{self.error(name):+.1%}"
        for name in ("parks", "recomputed"):
            yield spread([getattr(outcome, name) for outcome in self.live], 0)
            yield str(getattr(self.simulated, name))


def main() -> int:
    end_on_sigterm()
    begin()
    args = arguments()
    costs = CostModel.load(args.costs) if args.costs else CostModel()
    print(f"costs: {costs.source}")
    names = args.only or list(CONFIGURATIONS)
    live: dict[str, list[Outcome]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names:
            print(f"round {number + 1}: {name}", flush=True)
            live[name].append(play(CONFIGURATIONS[name], load_of(name), args.model))
    found = [Comparison(name, live[name], simulated(name, costs)) for name in names]
    print("", *markdown(HEADINGS, map(list, (item.cells() for item in found))), "", sep="\n")
    print(json.dumps({**circumstances(), "costs": asdict(costs), "found": list(told(found))}))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-m", "--model", help="default: the default model")
    parser.add_argument("--costs", type=Path, help="default: the built-in ones")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(CONFIGURATIONS))
    return parser.parse_args()


def load_of(name: str) -> tuple[Request, ...]:
    drawn = Load(CostModel()).requests(CONFIGURATIONS[name], SEED)
    return tuple(_playable(request) for request in drawn)


def _playable(request: Request) -> Request:
    """As a real server can be asked it: a model cannot be told to stop before its limit, and
    requests sent at one time arrive in any order."""
    arrival_s = request.arrival_s + APART_S * request.conversation
    return replace(request, arrival_s=arrival_s, max_tokens=request.num_output)


def simulated(name: str, costs: CostModel) -> Outcome:
    figures = figures_of(simulate(CONFIGURATIONS[name], load_of(name), costs))
    return Outcome(
        makespan_s=figures.makespan_s,
        completion_s=figures.mean_completion_s,
        parks=figures.parks,
        recomputed=figures.tokens_recomputed,
    )


def told(found: Sequence[Comparison]) -> Iterator[dict[str, object]]:
    for item in found:
        flags = " ".join(flags_of(CONFIGURATIONS[item.name]))
        errors = {name: item.error(name) for name in ("makespan_s", "completion_s")}
        yield {**asdict(item), "flags": flags, "errors": errors}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvaletError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
