"""`kvalet bench short`: a short version of every benchmark, and one table of what they came to.

Minutes instead of an hour; for figures to rely on, run each by its own name.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from rich.console import Console

from kvalet.bench.decode import Decode
from kvalet.bench.exact import Exact
from kvalet.bench.harness import FIRST, Benchmark, exit_code, measure
from kvalet.bench.latency import Latency
from kvalet.bench.prefix import Prefix
from kvalet.bench.pressure import Pressure
from kvalet.bench.report import Round, circumstances, faults_of, markdown, spread, values
from kvalet.bench.stall import Stall
from kvalet.bench.target import Where

SHOWN: Final = (
    *("complete", "as alone", "as unforced", "parks", "tok/s", "tok/s of four", "step ms"),
    *("outside %", "first token ms", "times faster than cold", "first token p50 ms"),
    *("first token p95 ms", "gap p95 ms", "gap p99 ms", "goodput/s", "p95 with / without"),
)


@dataclass(frozen=True, slots=True)
class Part:
    benchmark: Benchmark
    num_rounds: int = 1
    flags: tuple[str, ...] = ()  # of the started server


PARTS: Final = {
    "decode": Part(Decode(tokens=150), 2),
    "pressure": Part(Pressure(tokens=250), flags=("--ctx-size", "1024")),
    "stall": Part(Stall(tokens=420)),
    "latency": Part(Latency(rates=(0.5, 1.5), requests=16)),
    "prefix": Part(Prefix()),
    "exact": Part(Exact(tokens=48)),
}


def run(console: Console, where: Where) -> int:
    """0 if all was right, else 1."""
    found: dict[str, list[Round]] = {}
    seconds: dict[str, float] = {}
    for name, part in PARTS.items():
        console.print(f"== {name}")
        start = time.monotonic()
        own = replace(where, num_rounds=part.num_rounds, flags=(*where.flags, *part.flags))
        found[name] = measure(console.print, own, part.benchmark)
        seconds[name] = round(time.monotonic() - start, 1)
    lines = [line for name, rounds in found.items() for line in lines_of(name, rounds)]
    console.print("", *markdown(("benchmark", "case", "result"), lines), "", sep="\n")
    for name, rounds in found.items():
        for fault in faults_of(rounds):
            console.print(f"{name}: {fault}")
    result = {"where": asdict(where), "lines": lines, "seconds": seconds}
    console.print(json.dumps({**circumstances(), **result}))
    return max(map(exit_code, found.values()))


def lines_of(name: str, rounds: Sequence[Round]) -> Iterator[tuple[str, str, str]]:
    for case in rounds[0][FIRST].rows:
        found = {figure: values(rounds, FIRST, case, figure) for figure in SHOWN}
        known = {name: of for name, of in found.items() if any(value is not None for value in of)}
        if known:
            yield name, case, ", ".join(f"{figure} {spread(of)}" for figure, of in known.items())
