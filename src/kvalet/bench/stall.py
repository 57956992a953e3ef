"""`kvalet bench stall`: what a park costs the chats beside it.

Four chats in a pool that is large enough, each parked after every 64 tokens, with asynchronous and
with synchronous copies, and not at all: gaps between tokens with and without a copy beside them
(`gaps.py` says how that is decided), throughput while all four are there, and what was moved. The
chats start 112 tokens apart: so they are parked one after another, and there are times with fewer
of them, in which a gap with a copy beside it has its counterpart without. Copies ahead of a park
are off: they would run beside both. Rounds alternate; every run has a server of its own.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import httpx
from rich.console import Console

from kvalet.bench.chats import TIMEOUT, Chat, ChatState, stream_chat
from kvalet.bench.figures import Bodies
from kvalet.bench.gaps import Gap, gaps, tokens_per_s
from kvalet.bench.process import ServerProcess
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import begin, circumstances, markdown, percentile, shown, spread
from kvalet.bench.target import Where, server_counters

POOL: Final = ("--ctx-size", "4096", "--parallel", "4", "--preempt-mirror", "off")
EVERY: Final = 64
APART: Final = 112  # tokens between two starts: other ones modulo EVERY for each chat
POLL_S: Final = 0.01
MIB: Final = 1 << 20

UNFORCED: Final = "unforced"
FORCED: Final = {"async": "--preempt-async", "sync": "--no-preempt-async"}
MODES: Final = (UNFORCED, *FORCED)
PERCENTILES: Final = (50, 95, 99, 100)

GAP_HEADINGS: Final = (
    *("copies", "running", "gaps without a copy", "p50 / p95 / p99 / max ms"),
    *("with a copy", "p50 / p95 / p99 / max ms", "p95 with / without, by round"),
)
RUN_HEADINGS: Final = (
    *("copies", "tok/s of four", "of unforced, by round", "parks", "MiB out", "MiB in"),
    *("completed", "as unforced"),
)


@dataclass(frozen=True, slots=True)
class Options:
    where: Where = field(default_factory=Where)
    num_tokens: int = 700

    def server(self, mode: str) -> ServerProcess:
        forced = (FORCED[mode],) if mode in FORCED else ()
        env = {"LLAMA_SERVER_PREEMPT_EVERY": str(EVERY)} if mode in FORCED else {}
        return self.where.start(*POOL, more=forced, env=env)


@dataclass(frozen=True, slots=True)
class Run:
    round: int
    mode: str
    chats: Sequence[Chat]
    counted: Mapping[str, float]  # by the server

    def gaps(self) -> list[Gap]:
        return list(gaps(self.chats, is_async=self.mode != "sync"))

    def is_as(self, other: "Run") -> bool:
        return self.texts == other.texts

    @property
    def texts(self) -> list[str]:
        return [chat.text for chat in self.chats]

    @property
    def is_complete(self) -> bool:
        return all(chat.num_tokens == chat.body["max_tokens"] for chat in self.chats)

    @property
    def tokens_per_s(self) -> float | None:
        """While all chats were there; None if they never were, or not to their ends."""
        return tokens_per_s(self.chats) if self.is_complete else None


@dataclass(frozen=True, slots=True)
class GapRow:
    mode: str
    num_running: int
    num_without: int
    without_ms: Sequence[float]  # at PERCENTILES; nothing of no gaps
    num_with: int
    with_ms: Sequence[float]
    p95_ratios: Sequence[float]  # of each round that has both

    def cells(self) -> tuple[str, ...]:
        return (
            *(self.mode, str(self.num_running), str(self.num_without), _ms(self.without_ms)),
            *(str(self.num_with), _ms(self.with_ms), spread(self.p95_ratios, 2)),
        )


@dataclass(frozen=True, slots=True)
class RunRow:
    mode: str
    tokens_per_s: Sequence[float | None]  # of each round
    of_unforced: Sequence[float]  # of each round that has both
    parks: int  # of all rounds, as what follows
    bytes_out: int
    bytes_in: int
    completed: int
    as_unforced: int
    runs: int

    @property
    def is_right(self) -> bool:
        """Every text is what it was, and of forced runs, whatever was parked came from the host."""
        has_moved = self.bytes_out >= self.bytes_in > 0
        return self.completed == self.as_unforced == self.runs and (
            has_moved or self.mode == UNFORCED
        )

    def cells(self) -> tuple[str, ...]:
        return (
            *(self.mode, spread(self.tokens_per_s, 1), spread(self.of_unforced, 2)),
            *(str(self.parks), f"{self.bytes_out / MIB:.0f}", f"{self.bytes_in / MIB:.0f}"),
            *(f"{self.completed}/{self.runs}", f"{self.as_unforced}/{self.runs}"),
        )


def run(console: Console, options: Options) -> int:
    """0 if every chat was complete, with the text it has unforced, and bytes moved; else 1."""
    begin()
    runs = measure(console, options)
    gap_rows, run_rows = list(rows_of_gaps(runs)), list(rows_of_runs(runs))
    for headings, rows in ((GAP_HEADINGS, gap_rows), (RUN_HEADINGS, run_rows)):
        console.print(*markdown(headings, (row.cells() for row in rows)), "", sep="\n")
    result = {"gaps": [asdict(row) for row in gap_rows], "runs": [asdict(row) for row in run_rows]}
    console.print(json.dumps({**circumstances(), **asdict(options), "every": EVERY, **result}))
    return 0 if all(row.is_right for row in run_rows) else 1


def measure(console: Console, options: Options) -> list[Run]:
    bodies = pressing_chats(options.num_tokens)
    return [
        _run(console, options, bodies, number, mode)
        for number in range(options.where.num_rounds)
        for mode in MODES
    ]


def _run(console: Console, options: Options, bodies: Bodies, number: int, mode: str) -> Run:
    console.print(f"round {number + 1}, {mode}")
    with options.server(mode) as server:
        chats, counted = asyncio.run(_play(server.url, bodies))
    for chat in chats:
        if chat.error:
            console.print(f"{chat.name}: {chat.error}")
    return Run(number, mode, chats, counted)


async def _play(url: str, bodies: Bodies) -> tuple[list[Chat], Mapping[str, float]]:
    """All chats, each once the one before it has had APART tokens."""
    chats = [Chat(name, body) for name, body in bodies]
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        async with asyncio.TaskGroup() as group:
            for before, chat in zip([None, *chats], chats, strict=False):
                while before is not None and _is_early(before):
                    await asyncio.sleep(POLL_S)
                group.create_task(stream_chat(http, chat))
        return chats, await server_counters(http)


def _is_early(chat: Chat) -> bool:
    is_over = chat.state in (ChatState.DONE, ChatState.FAILED)
    return chat.num_pieces < APART and not is_over


def rows_of_gaps(runs: Sequence[Run]) -> Iterator[GapRow]:
    """By mode and number of running chats; those of all rounds together."""
    found = {(run.mode, run.round): run.gaps() for run in runs}
    counts = sorted({gap.num_running for of_run in found.values() for gap in of_run})
    for mode in MODES:
        of_mode = [of_run for (run_mode, _), of_run in found.items() if run_mode == mode]
        for count in counts:
            rounds = [[gap for gap in of_run if gap.num_running == count] for of_run in of_mode]
            if any(rounds):
                yield _gap_row(mode, count, rounds)


def _gap_row(mode: str, count: int, rounds: Sequence[Sequence[Gap]]) -> GapRow:
    def ms(found: Iterable[Gap], *, beside: bool) -> list[float]:
        return [1e3 * gap.seconds for gap in found if gap.is_beside_copy is beside]

    pairs = [(ms(found, beside=True), ms(found, beside=False)) for found in rounds]
    with_ms = [gap for pair in pairs for gap in pair[0]]
    without_ms = [gap for pair in pairs for gap in pair[1]]
    return GapRow(
        mode,
        count,
        num_without=len(without_ms),
        without_ms=_at_percentiles(without_ms),
        num_with=len(with_ms),
        with_ms=_at_percentiles(with_ms),
        p95_ratios=[percentile(a, 95) / percentile(b, 95) for a, b in pairs if a and b],
    )


def _at_percentiles(ms: Sequence[float]) -> list[float]:
    return [percentile(ms, percent) for percent in PERCENTILES] if ms else []


def rows_of_runs(runs: Sequence[Run]) -> Iterator[RunRow]:
    unforced = {run.round: run for run in runs if run.mode == UNFORCED}
    for mode in MODES:
        of_mode = [run for run in runs if run.mode == mode]
        pairs = [(run.tokens_per_s, unforced[run.round].tokens_per_s) for run in of_mode]
        yield RunRow(
            mode,
            tokens_per_s=[rate for rate, _ in pairs],
            of_unforced=[rate / base for rate, base in pairs if rate and base],
            parks=_total(of_mode, "n_preempt_total"),
            bytes_out=_total(of_mode, "preempt_bytes_out_total"),
            bytes_in=_total(of_mode, "preempt_bytes_in_total"),
            completed=sum(run.is_complete for run in of_mode),
            as_unforced=sum(run.is_as(unforced[run.round]) for run in of_mode),
            runs=len(of_mode),
        )


def _total(runs: Iterable[Run], name: str) -> int:
    return round(sum(run.counted[name] for run in runs))


def _ms(at_percentiles: Sequence[float]) -> str:
    return " / ".join(shown(ms, 1) for ms in at_percentiles) or "-"
