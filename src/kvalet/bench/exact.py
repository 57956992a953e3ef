"""`kvalet bench exact`: is a text the same however it is asked for?

Chats of four subjects, greedy and sampled with a seed, one after another; then the same again in
other ways, each text compared with the first. Of any OpenAI-compatible server: asked again, and
beside three others. Of a server that is started: also parked and copied back, parked and computed
again, with other batches and threads, and after a restart. A way that did not happen (no park,
nothing copied) counts as wrong. The last line of its output is JSON.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

from rich.console import Console

from kvalet.bench import versus
from kvalet.bench.chats import Chat, stream_chat
from kvalet.bench.figures import Bodies, errors_of, first_difference, one_by_one, without_cache
from kvalet.bench.process import ServerProcess
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import begin, circumstances, markdown
from kvalet.bench.target import Target, Where
from kvalet.errors import EngineError

POOL: Final = ("--ctx-size", "4096", "--parallel", "4")
NUM_BESIDE: Final = 4
SAMPLING: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "seed": 11},
}
MIB: Final = 1 << 20

HEADINGS: Final = ("asked", "identical", "first difference at character", "what happened")

Texts: TypeAlias = Mapping[str, str]  # by the chat's name


@dataclass(frozen=True, slots=True)
class Options:
    where: Where = field(default_factory=Where)
    num_tokens: int = 200
    every: int = 16  # tokens between forced parks


@dataclass(frozen=True, slots=True)
class Way:
    """A server of its own, and what must have happened on it."""

    name: str
    flags: tuple[str, ...] = ()
    is_parked: bool = False
    needs: tuple[str, ...] = ()  # counters that are above 0 afterwards


@dataclass(frozen=True, slots=True)
class Row:
    way: str
    asked: int
    identical: int
    first_difference: int | None  # a character; None: there is none
    happened: str = ""
    has_happened: bool = True
    errors: Sequence[str] = ()  # different ones, of chats that failed

    @property
    def is_right(self) -> bool:
        return self.has_happened and self.identical == self.asked

    def cells(self) -> tuple[str, ...]:
        place = "-" if self.first_difference is None else str(self.first_difference)
        return self.way, f"{self.identical}/{self.asked}", place, self.happened or "-"


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: Sequence[Row]

    @property
    def is_right(self) -> bool:
        return all(row.is_right for row in self.rows)

    @property
    def errors(self) -> Sequence[str]:
        return list(dict.fromkeys(error for row in self.rows for error in row.errors))

    def comparable(self) -> dict[str, float]:
        return {f"{row.way}: share identical": row.identical / row.asked for row in self.rows}


def run(console: Console, options: Options) -> int:
    """0 if every text is the same in every way, and every way happened; else 1."""
    begin()
    if options.where.vs:
        return versus.run(
            console,
            options.where,
            POOL,
            asdict(options),
            lambda target, number: Matrix(list(rows_at(target, options, number)[1])),
        )
    matrix = measure(console, options)
    console.print(*markdown(HEADINGS, [row.cells() for row in matrix.rows]), "", sep="\n")
    for error in matrix.errors:
        console.print(f"a chat failed: {error}")
    console.print(json.dumps({**circumstances(), **asdict(options), **asdict(matrix)}))
    return 0 if matrix.is_right else 1


def measure(console: Console, options: Options) -> Matrix:
    with options.where.served(*POOL) as target:
        console.print("alone, again, beside others")
        alone, rows = rows_at(target, options)
        ways = () if options.where.url else asyncio.run(_ways(target, options))
    for way in ways:
        console.print(way.name)
        rows.append(_row_of_server(options, way, alone))
    return Matrix(rows)


def rows_at(target: Target, options: Options, number: int = 0) -> tuple[Texts, list[Row]]:
    """The texts alone, and what any server can be asked. `number`: of the round; other chats in
    each."""
    chats = requests(options.num_tokens, options.where.first + number * NUM_BESIDE)
    alone = asyncio.run(one_by_one(target, without_cache(chats)))
    beside = asyncio.run(_beside(target, chats))
    again = asyncio.run(one_by_one(target, chats))
    num_found = sum(chat.num_cached for chat in again)
    expected = texts_of(alone)
    rows = [
        row(
            "again",
            expected,
            again,
            f"{num_found} prompt tokens found",
            has_happened=num_found > 0 or not target.is_kvalet,
        ),
        row("beside three others", expected, beside),
    ]
    return expected, rows


def requests(num_tokens: int, first: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """Names and bodies; those of one kind of sampling stand together."""
    chats = pressing_chats(num_tokens, NUM_BESIDE, first=first)
    return [
        (f"{name}, {kind}", {**body, **sampling})
        for kind, sampling in SAMPLING.items()
        for name, body in chats
    ]


async def _beside(target: Target, chats: Bodies) -> list[Chat]:
    """Four at once, and then the next four."""
    found: list[Chat] = []
    async with target.client() as http:
        for first in range(0, len(chats), NUM_BESIDE):
            some = chats[first : first + NUM_BESIDE]
            asked = [Chat(name, target.body(body)) for name, body in some]
            found += await asyncio.gather(*(stream_chat(http, chat) for chat in asked))
    return found


def texts_of(chats: Sequence[Chat]) -> Texts:
    """Raises EngineError if one is not whole: there is nothing to compare with."""
    for chat in chats:
        if not chat.text or not chat.is_complete:
            raise EngineError(f"{chat.name}: no text to compare with: {chat.error or _cut(chat)}")
    return {chat.name: chat.text for chat in chats}


def _cut(chat: Chat) -> str:
    return f"it ended after {chat.num_tokens} tokens" if chat.text else "none came"


def row(
    way: str,
    expected: Texts,
    chats: Sequence[Chat],
    happened: str = "",
    *,
    has_happened: bool = True,
) -> Row:
    differences = [
        first_difference(chat.text, expected[chat.name])
        for chat in chats
        if chat.text != expected[chat.name] or not chat.is_complete
    ]
    return Row(
        way,
        asked=len(chats),
        identical=len(chats) - len(differences),
        first_difference=min(differences, default=None),
        happened=happened,
        has_happened=has_happened,
        errors=errors_of(chats),
    )


async def _ways(target: Target, options: Options) -> Sequence[Way]:
    """With a number of threads that the server does not have."""
    async with target.client() as http:
        props = (await http.get("/props")).raise_for_status().json()
    threads = 1 if props["engine"]["threads"] > 1 else 2
    every = f"parked every {options.every} tokens"
    return (
        Way(f"{every}, copied back", (), True, ("n_preempt_total", "preempt_bytes_in_total")),
        Way(
            f"{every}, computed again",
            ("--preempt-ram", "0", "--cache-ram", "0"),
            True,
            ("n_preempt_total", "n_recompute_tokens_total"),
        ),
        Way("in batches of 32", ("--batch-size", "32")),
        Way(f"threads: {threads}", ("--threads", str(threads))),
        Way("after a restart"),
    )


def _row_of_server(options: Options, way: Way, expected: Texts) -> Row:
    env = {"LLAMA_SERVER_PREEMPT_EVERY": str(options.every)} if way.is_parked else {}
    with options.where.start(*POOL, more=way.flags, env=env) as server:
        chats, counted = asyncio.run(_asked(server, options))
    return row(
        way.name,
        expected,
        chats,
        happened=", ".join(_happened(counted)) if way.needs else "",
        has_happened=all(counted[name] > 0 for name in way.needs),
    )


async def _asked(server: ServerProcess, options: Options) -> tuple[list[Chat], Mapping[str, float]]:
    target = Target(server.url)
    asked = requests(options.num_tokens, options.where.first)
    chats = await one_by_one(target, without_cache(asked))
    async with target.client() as http:
        return chats, await target.counters(http)


def _happened(counted: Mapping[str, float]) -> Iterator[str]:
    yield f"{counted['n_preempt_total']:.0f} parks"
    yield f"{counted['preempt_bytes_in_total'] / MIB:.1f} MiB copied back"
    yield f"{counted['n_recompute_tokens_total']:.0f} tokens computed again"
