"""`kvalet bench stall --mirror`: what copying pages ahead of a park saves when it comes.

The chats of `kvalet bench pressure` in a pool that is too small, with `--preempt-mirror on` and
`off` in turn: how long parks took and what each still had to copy, as the server's log says; how
busy the copier was; the gaps between tokens. Every run has a server of its own.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console

from kvalet.bench.figures import (
    Alone,
    Bodies,
    Figures,
    ParkLine,
    chats_alone,
    park_lines,
    play,
)
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import (
    begin,
    circumstances,
    markdown,
    percentile_or_none,
    shown,
    spread,
)
from kvalet.bench.stall import Options
from kvalet.bench.target import Target

POOL: Final = ("--ctx-size", "2048", "--parallel", "4")
MIRROR: Final = ("on", "off")
MIB: Final = 1 << 20

HEADINGS: Final = (
    *("--preempt-mirror", "parks", "park ms", "MiB copied by a park", "MiB copied in all"),
    *("copier busy", "gap p50 ms", "gap p95 ms", "tok/s", "completed", "identical"),
)


@dataclass(frozen=True, slots=True)
class Run:
    mirror: str
    parks: Sequence[ParkLine]
    busy: float  # the copier, of the wall time
    copied_bytes: int  # to the host
    figures: Figures


def run(console: Console, options: Options) -> int:
    """0 if every chat was complete and as alone, and parks copied; else 1."""
    begin()
    bodies = pressing_chats(options.num_tokens)
    console.print(f"{len(bodies)} chats, one after another")
    with options.where.start(*POOL) as server:
        alone = asyncio.run(chats_alone(Target(server.url), bodies))
    runs = [
        _run(console, options, bodies, alone, number, mirror)
        for number in range(options.where.num_rounds)
        for mirror in MIRROR
    ]
    console.print(*markdown(HEADINGS, rows(runs)), "", sep="\n")
    result = {**circumstances(), **asdict(options), "runs": [asdict(run) for run in runs]}
    console.print(json.dumps(result))
    return 0 if all(run.figures.is_right and run.parks for run in runs) else 1


def _run(
    console: Console, options: Options, bodies: Bodies, alone: Alone, number: int, mirror: str
) -> Run:
    console.print(f"round {number + 1}, --preempt-mirror {mirror}")
    with options.where.start(*POOL, more=("--preempt-mirror", mirror)) as server:
        played = asyncio.run(play(Target(server.url), bodies, with_small=False))
        parks = [park for park in park_lines(server.output()) if park.mode == "swap"]
    counted = played.counted
    return Run(
        mirror,
        parks,
        busy=counted["copy_seconds_total"] / played.wall_s,
        copied_bytes=round(counted["preempt_bytes_out_total"] + counted["mirror_bytes_total"]),
        figures=played.figures(alone),
    )


def rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Of all rounds together; medians and ranges."""
    for mirror in MIRROR:
        found = [run for run in runs if run.mirror == mirror]
        parks, figures = [park for run in found for park in run.parks], [r.figures for r in found]
        parks_ms = [park.ms for park in parks]
        yield [
            mirror,
            str(len(parks)),
            f"{spread(parks_ms, 1)}, p95 {shown(percentile_or_none(parks_ms, 95), 1)}",
            spread([park.num_bytes / MIB for park in parks], 1),
            spread([run.copied_bytes / MIB for run in found], 0),
            spread([100 * run.busy for run in found], 1) + " %",
            spread([run.gap_p50_ms for run in figures], 1),
            spread([run.gap_p95_ms for run in figures], 1),
            spread([run.tokens_per_s for run in figures], 1),
            f"{sum(f.completed for f in figures)}/{sum(f.chats for f in figures)}",
            f"{sum(f.identical for f in figures)}/{sum(f.chats for f in figures)}",
        ]
