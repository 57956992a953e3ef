"""What a run of chats came to, as their clients saw it and as the server counted it, if it does."""

import asyncio
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import httpx

from kvalet.bench.chats import Chat, stream_chat
from kvalet.bench.prompts import small_request
from kvalet.bench.report import known, percentile_or_none, shown
from kvalet.bench.target import Target

Bodies: TypeAlias = Sequence[tuple[str, dict[str, Any]]]  # names and chat completion bodies
Alone: TypeAlias = Mapping[str, Chat]  # by its name

MAX_ERROR = 300  # characters of what a server says

HEADINGS = (
    *("completed", "identical", "parks", "swap", "recompute", "tokens recomputed"),
    *("wall s", "tok/s", "longest parked s (of wall)", "gap p50 / p95 ms", "small answered"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    chats: int
    completed: int  # with as many tokens as were asked for
    identical: int  # to the same chat alone
    parks: int | None  # None, as what follows: the server does not say
    swapped: int | None
    recomputed: int | None
    recomputed_tokens: int | None
    wall_s: float
    tokens_per_s: float  # of all chats
    longest_parked_s: float  # one pause of one chat, after its first token
    gap_p50_ms: float | None  # between two pieces of a chat's text, pauses apart; None: no gaps
    gap_p95_ms: float | None
    small_requests: int  # answered meanwhile
    errors: Sequence[str] = ()  # different ones, of chats that failed

    @property
    def is_right(self) -> bool:
        return self.completed == self.identical == self.chats

    def cells(self) -> tuple[str, ...]:
        """As a table's row, under HEADINGS."""
        return (
            f"{self.completed}/{self.chats}",
            f"{self.identical}/{self.chats}",
            *map(shown, (self.parks, self.swapped, self.recomputed, self.recomputed_tokens)),
            f"{self.wall_s:.1f}",
            f"{self.tokens_per_s:.1f}",
            f"{self.longest_parked_s:.1f} ({self.longest_parked_s / self.wall_s:.0%})",
            f"{shown(self.gap_p50_ms, 1)} / {shown(self.gap_p95_ms, 1)}",
            str(self.small_requests),
        )

    def comparable(self) -> dict[str, float]:
        """Without a completed chat, counts only: to fail takes no time."""
        counts = {"completed": self.completed, "identical to alone": self.identical}
        speeds = {
            "wall s": self.wall_s,
            "tok/s": self.tokens_per_s,
            "gap p50 ms": self.gap_p50_ms,
            "gap p95 ms": self.gap_p95_ms,
        }
        return known({**counts, **(speeds if self.completed else {})})


def first_difference(text: str, other: str) -> int:
    """The character from which two texts differ: the length of the shorter one at most."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


async def chats_alone(target: Target, bodies: Bodies) -> Alone:
    """One after another, with nothing found from earlier ones where the server can be told so."""
    return {chat.name: chat for chat in await one_by_one(target, without_cache(bodies))}


async def one_by_one(target: Target, bodies: Bodies) -> list[Chat]:
    async with target.client() as http:
        chats = [Chat(name, target.body(body)) for name, body in bodies]
        return [await stream_chat(http, chat) for chat in chats]


def without_cache(bodies: Bodies) -> Bodies:
    return [(name, {**body, "cache_prompt": False}) for name, body in bodies]


def errors_of(chats: Iterable[Chat]) -> list[str]:
    """Different ones, in the order of the chats."""
    return list(dict.fromkeys(chat.error[:MAX_ERROR] for chat in chats if chat.error))


class ParkLine(NamedTuple):
    """What the server's log says of a park."""

    num_bytes: int
    mode: str
    ms: float


_PARK_LINE = re.compile(r" park: .*bytes=(\d+) mode=(\w+) ms=(\S+)")


def park_lines(output: str) -> Iterator[ParkLine]:
    for num_bytes, mode, ms in _PARK_LINE.findall(output):
        yield ParkLine(int(num_bytes), mode, float(ms))


@dataclass(frozen=True, slots=True)
class Run:
    chats: list[Chat]
    wall_s: float
    counted: Mapping[str, float]  # by the server, meanwhile
    small: list[Chat]  # asked meanwhile, one after another

    def figures(self, alone: Alone) -> Figures:
        chats = self.chats
        gaps_ms = [1e3 * gap for chat in chats for gap in chat.gaps_s]
        pauses_s = [pause for chat in chats for pause in chat.pauses_s]
        return Figures(
            chats=len(chats),
            completed=sum(chat.is_complete for chat in chats),
            identical=sum(
                chat.is_complete and chat.text == alone[chat.name].text for chat in chats
            ),
            parks=self._count("n_preempt_total"),
            swapped=self._count("n_preempt_swap_total"),
            recomputed=self._count("n_preempt_recompute_total"),
            recomputed_tokens=self._count("n_recompute_tokens_total"),
            wall_s=self.wall_s,
            tokens_per_s=sum(chat.num_tokens for chat in chats) / self.wall_s,
            longest_parked_s=max(pauses_s, default=0.0),
            gap_p50_ms=percentile_or_none(gaps_ms, 50),
            gap_p95_ms=percentile_or_none(gaps_ms, 95),
            small_requests=sum(chat.is_complete for chat in self.small),
            errors=errors_of([*chats, *alone.values(), *self.small]),
        )

    def _count(self, name: str) -> int | None:
        return round(self.counted[name]) if self.counted else None


async def play(target: Target, bodies: Bodies, *, with_small: bool) -> Run:
    """All chats at once; `with_small`: beside one small request after another."""
    chats = [Chat(name, target.body(body)) for name, body in bodies]
    async with target.client() as http:
        before = await target.counters(http)
        asked: list[Chat] = []
        small = asyncio.create_task(_send_small(http, target, asked)) if with_small else None
        start = time.monotonic()
        await asyncio.gather(*(stream_chat(http, chat) for chat in chats))
        wall_s = time.monotonic() - start
        if small is not None:
            small.cancel()
        after = await target.counters(http)
    counted = {name: after[name] - before.get(name, 0) for name in after}
    return Run(chats, wall_s, counted, asked)


async def _send_small(http: httpx.AsyncClient, target: Target, asked: list[Chat]) -> None:
    """One small request after another until one fails, each added to `asked`."""
    for number in itertools.count():
        chat = Chat("", target.body(small_request(number)))
        asked.append(chat)
        await stream_chat(http, chat)
        if chat.error:
            return
