"""`kvalet bench stall`: what a park costs the chats beside it.

Four chats in a pool that is large enough, each parked after every 64 tokens, with asynchronous and
with synchronous copies, and not at all: gaps between tokens with and without a copy beside them
(`gaps.py` says how that is decided), throughput while all four are there, and what was moved. The
chats start 112 tokens apart: so they are parked one after another, and there are times with fewer
of them, in which a gap with a copy beside it has its counterpart without. Copies ahead of a park
are off: they would run beside both. Every run has a server of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final

from kvalet.bench.figures import MIB, counts, num_same, percentiles, ratio, told
from kvalet.bench.gaps import Gap, gaps, tokens_per_s
from kvalet.bench.harness import Case, Played
from kvalet.bench.loads import staggered
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import Row
from kvalet.bench.target import Where

EVERY: Final = 64
APART: Final = 112  # tokens between two starts: other ones modulo EVERY for each chat
UNFORCED, SYNC = "unforced", "sync"
FORCED: Final = {"async": "--preempt-async", SYNC: "--no-preempt-async"}
PERCENTILES: Final = (50, 95, 99, 100)
MOVED: Final = {"MiB out": "preempt_bytes_out_total", "MiB in": "preempt_bytes_in_total"}


@dataclass(frozen=True, slots=True)
class Stall:
    tokens: int = 700
    POOL: ClassVar[tuple[str, ...]] = (
        *("--ctx-size", "4096", "--parallel", "4"),
        *("--preempt-mirror", "off"),
    )
    ROUNDS: ClassVar[int] = 3
    needs_own: ClassVar[str] = (
        "stall forces parks, which only a kvalet server that it starts can do"
    )

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        load = staggered(pressing_chats(self.tokens), APART)
        yield Case(UNFORCED, load, is_fresh=True)
        for mode, flag in FORCED.items():
            yield Case(mode, load, (flag,), {"LLAMA_SERVER_PREEMPT_EVERY": str(EVERY)})

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        unforced = played[UNFORCED]
        for mode, one in played.items():
            yield _run_row(mode, one, unforced)
        yield from chain.from_iterable(_gap_rows(mode, one) for mode, one in played.items())


def _run_row(mode: str, one: Played, unforced: Played) -> Row:
    """Every text must be what it was, and of forced runs, what was parked come from the host."""
    same, speed = num_same(one.chats, unforced.chats), tokens_per_s(one.chats)
    figures = {
        **counts(one.chats),
        "as unforced": same,
        "tok/s of four": speed,
        "of unforced": ratio(speed, tokens_per_s(unforced.chats)),
        **told(one.counted, {"parks": "n_preempt_total"}),
        **told(one.counted, MOVED, MIB),
    }
    faults = [] if same == len(one.chats) else [f"{same} of {len(one.chats)} texts as unforced"]
    if mode != UNFORCED and not (figures["MiB out"] or 0) >= (figures["MiB in"] or 0) > 0:
        faults.append("what was parked did not come back from the host")
    return Row(mode, figures, faults)


def _gap_rows(mode: str, one: Played) -> Iterator[Row]:
    """By number of running chats."""
    found = list(gaps(one.chats, is_async=mode != SYNC))
    for count in sorted({gap.num_running for gap in found}):
        yield _gap_row(f"{mode}, {count} running", [g for g in found if g.num_running == count])


def _gap_row(case: str, found: list[Gap]) -> Row:
    without = [gap.seconds for gap in found if not gap.is_beside_copy]
    beside = [gap.seconds for gap in found if gap.is_beside_copy]
    figures = {
        "gaps without a copy": len(without),
        **percentiles("without", without, *PERCENTILES),
        "gaps with a copy": len(beside),
        **percentiles("with", beside, *PERCENTILES),
    }
    times = ratio(figures["with p95 ms"], figures["without p95 ms"])
    return Row(case, {**figures, "p95 with / without": times})
