"""`kvalet bench pressure`: chats that do not fit together, and what that costs.

One run against a server; or a table of runs, each against a server of its own: of budgets and
policies, or of uneven chats in both entry orders. Texts are compared with those of the same chats
alone, made once. Or rounds on two servers by turns. The last line of its output is JSON.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final, TypeAlias

from rich.console import Console

from kvalet.bench import versus
from kvalet.bench.figures import HEADINGS, Alone, Bodies, Figures, chats_alone, park_lines, play
from kvalet.bench.prompts import pressing_chats, uneven_chats
from kvalet.bench.report import begin, circumstances, markdown
from kvalet.bench.target import Target, Where, at
from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES

POOL = ("--ctx-size", "2048", "--parallel", "4")
UNLIMITED, DEFAULT = "-1", "default"
MIB = 1 << 20

Row: TypeAlias = tuple[dict[str, str], Figures]  # what is particular about it, and what came of it


@dataclass(frozen=True, slots=True)
class Options:
    where: Where = field(default_factory=Where)
    num_chats: int = 4
    num_tokens: int = 700
    with_small: bool = False


def run(console: Console, options: Options, kind: str) -> int:
    """`kind`: "once", "matrix" or "uneven". 0 if every run was complete and as alone, else 1."""
    begin()
    options.where.begin_record()
    if options.where.vs:
        return _versus(console, options)
    rows = list(rows_of(console, options, kind))
    console.print(*table(rows), "", sep="\n")
    wrong = [about for about, figures in rows if not figures.is_right]
    for about in wrong:
        named = " ".join(word for flag in about.items() for word in flag)
        console.print(f"not complete, or not as alone{named and ': '}{named}")
    for error in dict.fromkeys(error for _, figures in rows for error in figures.errors):
        console.print(f"a chat failed: {error}")
    results = [{**about, **asdict(figures)} for about, figures in rows]
    console.print(json.dumps({**circumstances(), **asdict(options), "runs": results}))
    return 1 if wrong else 0


def rows_of(console: Console, options: Options, kind: str) -> Iterator[Row]:
    return _RUNS[kind](console, options)


def _versus(console: Console, options: Options) -> int:
    return versus.run(
        console,
        options.where,
        POOL,
        asdict(options),
        lambda target, number: measure_at(target, options, number),
    )


def measure_at(target: Target, options: Options, number: int = 0) -> Figures:
    """At once and then alone. `number`: of the round; other chats in each."""
    bodies = _bodies(options, number)
    run = asyncio.run(play(target, bodies, with_small=options.with_small))
    return run.figures(asyncio.run(chats_alone(target, bodies)))


def _bodies(options: Options, number: int = 0) -> Bodies:
    first = options.where.first + number * options.num_chats
    return pressing_chats(options.num_tokens, options.num_chats, first=first)


def _once(console: Console, options: Options) -> Iterator[Row]:
    if options.where.url is not None:
        target = at(options.where.url)
        count = f"{options.num_chats} chats at once, then one after another"
        console.print(f"{count}, at {target.url}")
        yield {}, measure_at(target, options)
        return
    bodies = _bodies(options)
    alone = _alone(console, options, bodies)
    yield {}, _played(console, options, bodies, alone, {})[0]


def _matrix(console: Console, options: Options) -> Iterator[Row]:
    """Every budget under every policy. Two of the budgets lie among the sizes of the parks that
    the first run had."""
    bodies = _bodies(options)
    alone = _alone(console, options, bodies)
    policies = [{"--preempt-policy": policy} for policy in VICTIM_POLICIES]
    first = {**policies[0], "--preempt-ram": UNLIMITED}
    figures, output = _played(console, options, bodies, alone, first)
    yield first, figures
    budgets = (UNLIMITED, DEFAULT, "0", *budgets_between(output))
    for policy in policies:
        for budget in budgets:
            about = {**policy, "--preempt-ram": budget}
            if about != first:
                yield about, _played(console, options, bodies, alone, about)[0]


def _uneven(console: Console, options: Options) -> Iterator[Row]:
    bodies = uneven_chats(options.num_tokens, first=options.where.first)
    alone = _alone(console, options, bodies)
    for order in LINE_ORDERS:
        about = {"--preempt-resume": order}
        yield about, _played(console, options, bodies, alone, about)[0]


_RUNS: Final = {"once": _once, "matrix": _matrix, "uneven": _uneven}


def _alone(console: Console, options: Options, bodies: Bodies) -> Alone:
    """From a quiet server in which each chat has the whole pool to itself."""
    console.print(f"{len(bodies)} chats, one after another")
    with options.where.start(*POOL) as server:
        return asyncio.run(chats_alone(Target(server.url), bodies))


def _played(
    console: Console, options: Options, bodies: Bodies, alone: Alone, about: dict[str, str]
) -> tuple[Figures, str]:
    """The chats at once, on a server with the flags of `about`; also what that server printed."""
    flags = [word for flag in about.items() if flag[1] != DEFAULT for word in flag]
    console.print(" ".join([f"{len(bodies)} chats at once", *flags]))
    with options.where.start(*POOL, more=flags) as server:
        run = asyncio.run(play(Target(server.url), bodies, with_small=options.with_small))
        return run.figures(alone), server.output()


def budgets_between(output: str) -> list[str]:
    """In MiB, at a third and two thirds of the way from the smallest park to the largest."""
    parks = [park for park in park_lines(output) if park.mode == "swap"]
    sizes = [park.num_bytes / MIB for park in parks] or [0.0]
    least, most = min(sizes), max(sizes)
    wanted = {max(1, round(least + share * (most - least))) for share in (1 / 3, 2 / 3)}
    return [str(budget) for budget in sorted(wanted)]


def table(rows: list[Row]) -> Iterator[str]:
    cells = ([*about.values(), *figures.cells()] for about, figures in rows)
    return markdown([*rows[0][0], *HEADINGS], cells)
