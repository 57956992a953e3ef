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
from contextlib import ExitStack
from dataclasses import Field, asdict, dataclass, field
from itertools import groupby
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

from rich.console import Console
from typing_extensions import override

from kvalet.bench.chats import Chat
from kvalet.bench.figures import Figures
from kvalet.bench.loads import Load, Session
from kvalet.bench.process import ServerProcess
from kvalet.bench.report import circumstances, markdown, spread
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


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    figures: Figures
    faults: Sequence[str] = ()  # what is not as it should be, beside chats that failed

    @property
    def is_whole(self) -> bool:
        return not (self.figures.get("failed") or self.figures.get("stopped early"))


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


@dataclass(frozen=True, slots=True)
class Turn:
    """What a round on one server came to."""

    rows: Sequence[Row]
    faults: Sequence[str]


Round: TypeAlias = Mapping[str, Turn]  # by the server's name


class Side:
    """One of the servers under the same load: at `url`, or started for what each case wants."""

    def __init__(self, where: Where, pool: Sequence[str], url: str | None) -> None:
        self._where = where
        self._pool = pool
        self._there = at(url) if url else None
        self._server: ServerProcess | None = None
        self._wanted: object = None

    @override
    def __str__(self) -> str:
        return str(self._there or "a started server")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def play(self, case: Case) -> Played:
        target = self._there or self._started(case)
        printed = len(self._log())
        session, error = asyncio.run(_play(target, case.load))
        log = self._log()[printed:]
        return Played(session.chats, session.wall_s, session.counted, log, error, target.url)

    def _started(self, case: Case) -> Target:
        wanted = (case.flags, dict(case.env))
        if self._server is None or case.is_fresh or wanted != self._wanted:
            self.__exit__(None, None, None)
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
    lines = comparison(rounds) if where.vs else tables([turns[FIRST] for turns in rounds])
    console.print("", *lines, *faults_of(rounds), sep="\n")
    about = {"benchmark": type(benchmark).__name__, **asdict(benchmark), "where": asdict(where)}
    told = [{name: _told(turn) for name, turn in turns.items()} for turns in rounds]
    return {**circumstances(), **about, "rounds": told, **_ratios_told(rounds)}


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
            f"server {number}": stack.enter_context(Side(where, benchmark.POOL, url))
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
    rows = list(benchmark.rows(played))
    faults = [f"{name}: {problem}" for name, one in played.items() for problem in one.problems()]
    return Turn(rows, faults + [f"{row.case}: {fault}" for row in rows for fault in row.faults])


def by_case(turns: Iterable[Turn]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for turn in turns:
        for row in turn.rows:
            found.setdefault(row.case, []).append(row)
    return found


def tables(turns: Sequence[Turn]) -> Iterator[str]:
    """Of one server: a table for each kind of row; medians and ranges."""

    def names_of(item: tuple[str, Sequence[Row]]) -> tuple[str, ...]:
        return tuple(item[1][0].figures)

    for names, group in groupby(by_case(turns).items(), names_of):
        table = (
            [case, *(spread(row.figures.get(name) for row in rows) for name in names)]
            for case, rows in group
        )
        yield from (*markdown(["case", *names], table), "")


def comparison(rounds: Sequence[Round]) -> Iterator[str]:
    """A line for every figure: medians and ranges of each server, and of ratios."""
    first, *others = rounds[0]
    ratios = ratios_of(rounds)
    found = {name: by_case(turns[name] for turns in rounds) for name in (first, *others)}
    table = (
        [
            case,
            figure,
            *(
                spread(row.figures.get(figure) for row in found[name].get(case, ()))
                for name in found
            ),
            *(spread(of[name]) for name in others),
        ]
        for (case, figure), of in ratios.items()
    )
    headings = ["case", "figure", first, *others, *(f"{first} / {name}" for name in others)]
    yield from (*markdown(headings, table), "")


def ratios_of(rounds: Sequence[Round]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """How many times of another server's the first one's figures are, by case and figure, by
    server, by round; where both have the figure and all chats of both were complete."""
    first, *others = rounds[0]
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for turns in rounds:
        for row in (row for turn in turns.values() for row in turn.rows):
            for figure in row.figures:
                found.setdefault((row.case, figure), {name: [] for name in others})
        for name in others:
            theirs = {row.case: row for row in turns[name].rows}
            for row in turns[first].rows:
                for figure, ratio in _ratios(row, theirs.get(row.case)):
                    found[row.case, figure][name].append(ratio)
    return found


def _ratios(row: Row, other: Row | None) -> Iterator[tuple[str, float]]:
    if other is not None and row.is_whole and other.is_whole:
        for figure, value in row.figures.items():
            divisor = other.figures.get(figure)
            if value is not None and divisor:
                yield figure, value / divisor


def faults_of(rounds: Iterable[Round]) -> Iterator[str]:
    """What was wrong, each once."""
    told = (
        f"{name}: {fault}"
        for turns in rounds
        for name, turn in turns.items()
        for fault in turn.faults
    )
    return iter(dict.fromkeys(told))


def _told(turn: Turn) -> Mapping[str, object]:
    rows = [{"case": row.case, **row.figures} for row in turn.rows]
    return {"rows": rows, "faults": turn.faults}


def _ratios_told(rounds: Sequence[Round]) -> Mapping[str, object]:
    if len(rounds[0]) == 1:
        return {}
    return {"ratios": {": ".join(of): by_side for of, by_side in ratios_of(rounds).items()}}
