"""What every benchmark runs on.

A benchmark is cases, each a load on a server, and a measure, which turns what was played in a round
into rows of named figures. The rest is here: servers are started or joined, rounds alternate
between them, what failed is told, and the figures are a table and, as the last line, JSON. A chat
that fails, on whichever server, is a figure like others.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import Field, asdict, dataclass, field
from typing import Any, ClassVar, Final, Protocol

from rich.console import Console
from typing_extensions import override

from kvalet.bench.chats import Chat
from kvalet.bench.loads import Load, Session
from kvalet.bench.process import ServerProcess
from kvalet.bench.report import (
    Round,
    Row,
    Turn,
    circumstances,
    comparison,
    faults_of,
    tables,
    told,
)
from kvalet.bench.target import Target, Where, at
from kvalet.errors import ConfigError

FIRST: Final = "server 1"
FIRST_WRONG, OTHER_WRONG = 1, 3  # exit codes


@dataclass(frozen=True, slots=True)
class Case:
    """A load, and what its server must be if one is started. A case that wants the same as the one
    before it gets the same server."""

    name: str
    load: Load
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    is_fresh: bool = False  # the server has served nothing before


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a case on a server."""

    chats: Sequence[Chat] = ()
    wall_s: float | None = None
    counted: Mapping[str, float] = field(default_factory=dict[str, float])  # {}: it does not count
    log: str = ""  # what the server printed meanwhile, if it was started
    error: str = ""  # why the load broke off
    url: str = ""

    def problems(self) -> Iterator[str]:
        found = Counter(chat.problem for chat in self.chats if chat.problem)
        for problem, count in found.items():
            yield f"{count} of {len(self.chats)} chats {problem}"
        if self.error:
            yield f"broke off: {self.error}"


class Benchmark(Protocol):
    """A dataclass: its fields are the benchmark's options."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    POOL: ClassVar[tuple[str, ...]]  # flags of the server, before those of the command line
    ROUNDS: ClassVar[int]  # of one server, if nothing else is said

    @property
    def needs_own(self) -> str:
        """Why only a server that is started will do; empty if any will."""
        ...

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        """Of a round. `played`: those of them that were, by name."""
        ...

    def rows(self, played: Mapping[str, Played]) -> Iterable[Row]: ...


class Side:
    """One of the servers under the same load: at `url`, or started for what each case wants."""

    def __init__(self, where: Where, pool: Sequence[str], url: str | None) -> None:
        self._where, self._pool = where, pool
        self._there = at(url) if url else None
        self._server: ServerProcess | None = None
        self._wanted: object = None

    @override
    def __str__(self) -> str:
        return str(self._there or "a started server")

    def play(self, case: Case) -> Played:
        target = self._there or self._started(case)
        printed = len(self._log())
        session, error = asyncio.run(_play(target, case.load))
        log = self._log()[printed:]
        return Played(session.chats, session.wall_s, session.counted, log, error, target.url)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _started(self, case: Case) -> Target:
        wanted = (case.flags, dict(case.env))
        if self._server is None or case.is_fresh or wanted != self._wanted:
            self.close()
            server = self._where.start(*self._pool, more=case.flags, env=case.env)
            self._server, self._wanted = server.__enter__(), wanted
        return Target(self._server.url)

    def _log(self) -> str:
        return self._server.output() if self._server else ""


async def _play(target: Target, load: Load) -> tuple[Session, str]:
    async with target.client() as http:
        session = Session(target, http)
        return session, await session.play(load)


def run(console: Console, where: Where, benchmark: Benchmark) -> int:
    """0 if all was right, 1 if not, 3 if the first server was right and another one was not."""
    rounds = measure(console.print, where, benchmark)
    console.print(json.dumps(report(console, where, benchmark, rounds)))
    return exit_code(rounds)


def report(
    console: Console, where: Where, benchmark: Benchmark, rounds: Sequence[Round]
) -> Mapping[str, object]:
    """Prints the tables and what was wrong; returns all of it for JSON."""
    lines = comparison(rounds) if where.vs else tables(rounds)
    console.print("", *lines, sep="\n")
    for fault in faults_of(rounds):
        console.print(fault)
    about = {"benchmark": type(benchmark).__name__, **asdict(benchmark), "where": asdict(where)}
    return {**circumstances(), **about, **told(rounds)}


def exit_code(rounds: Sequence[Round]) -> int:
    wrong = {name for turns in rounds for name, turn in turns.items() if turn.faults}
    return FIRST_WRONG if FIRST in wrong else OTHER_WRONG if wrong else 0


def measure(tell: Callable[[str], None], where: Where, benchmark: Benchmark) -> list[Round]:
    if benchmark.needs_own and not where.is_own:
        raise ConfigError(benchmark.needs_own)
    circumstances()
    where.begin_record()
    urls = (where.url, *where.vs)
    with ExitStack() as stack:
        sides = {
            f"server {number}": stack.enter_context(closing(Side(where, benchmark.POOL, url)))
            for number, url in enumerate(urls, 1)
        }
        if len(sides) > 1:
            tell("\n".join(f"{name}: {side}" for name, side in sides.items()))
        return [_round(tell, sides, where, benchmark, number) for number in range(where.num_rounds)]


def _round(
    tell: Callable[[str], None],
    sides: Mapping[str, Side],
    where: Where,
    benchmark: Benchmark,
    number: int,
) -> Round:
    """Another side goes first in every round."""
    names = list(sides)
    first = number % len(names)
    turns: dict[str, Turn] = {}
    for name in names[first:] + names[:first]:
        played: dict[str, Played] = {}
        for case in benchmark.cases(where, number, played):
            tell(f"round {number + 1}, {name}: {case.name}")
            played[case.name] = sides[name].play(case)
        turns[name] = _turn(benchmark, played)
    return {name: turns[name] for name in names}


def _turn(benchmark: Benchmark, played: Mapping[str, Played]) -> Turn:
    rows = {row.case: row for row in benchmark.rows(played)}
    problems = {name: list(one.problems()) for name, one in played.items()}
    for case, row in rows.items():
        problems.setdefault(case, []).extend(row.faults)
    return Turn(rows, [f"{case}: {what}" for case, found in problems.items() for what in found])
