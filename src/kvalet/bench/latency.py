"""`kvalet bench latency`: how long clients wait when requests come as they please.

For each rate, requests of mixed lengths arrive at random (Poisson; lengths and pace follow from a
seed) whether or not earlier ones are answered: time to first token, gaps between tokens with all
pauses in them, and goodput: how many a second got their first token and then one after the other
within the limits. Works against any OpenAI-compatible server. The last line of its output is JSON.
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

import httpx
from rich.console import Console

from kvalet.bench import versus
from kvalet.bench.chats import Chat, stream_chat
from kvalet.bench.figures import errors_of
from kvalet.bench.prompts import mixed_request
from kvalet.bench.report import begin, circumstances, known, markdown, percentile_or_none, shown
from kvalet.bench.target import Target, Where

POOL: Final = ("--ctx-size", "2048", "--parallel", "4")
WORDS: Final = (8, 320)  # of a prompt; drawn evenly on a logarithmic scale, as the tokens
TOKENS: Final = (8, 128)  # of an answer

HEADINGS: Final = (
    *("requests/s", "completed", "failed", "first token p50 / p95 ms", "gap p50 / p99 ms"),
    *("goodput/s", "tok/s", "parks"),
)


@dataclass(frozen=True, slots=True)
class Options:
    where: Where = field(default_factory=Where)
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)  # requests a second
    num_requests: int = 40  # at each rate
    max_first_s: float = 1.0  # to the first token, of a good request
    max_gap_s: float = 0.1  # between tokens, on average, likewise
    seed: int = 1


class Arrival(NamedTuple):
    at_s: float  # after the beginning
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one rate."""

    rate: float
    requests: int
    completed: int
    wall_s: float  # from the beginning to the last answer
    first_p50_ms: float | None  # of completed requests, as all percentiles; None: of nothing
    first_p95_ms: float | None
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    goodput: float  # requests a second
    tokens_per_s: float
    parks: int | None  # None: the server does not say
    errors: Sequence[str] = ()  # different ones, of requests that failed

    def cells(self) -> tuple[str, ...]:
        """As a table's row, under HEADINGS."""
        return (
            f"{self.rate:g}",
            f"{self.completed}/{self.requests}",
            str(self.requests - self.completed),
            f"{shown(self.first_p50_ms)} / {shown(self.first_p95_ms)}",
            f"{shown(self.gap_p50_ms, 1)} / {shown(self.gap_p99_ms, 1)}",
            f"{self.goodput:.2f}",
            f"{self.tokens_per_s:.1f}",
            shown(self.parks),
        )

    def comparable(self) -> dict[str, float]:
        figures = {
            "completed": self.completed,
            "first token p50 ms": self.first_p50_ms,
            "first token p95 ms": self.first_p95_ms,
            "gap p50 ms": self.gap_p50_ms,
            "gap p99 ms": self.gap_p99_ms,
            "goodput/s": self.goodput,
        }
        return known(figures)


@dataclass(frozen=True, slots=True)
class Sweep:
    rates: Sequence[Figures]

    @property
    def errors(self) -> Sequence[str]:
        return list(dict.fromkeys(error for figures in self.rates for error in figures.errors))

    @property
    def is_right(self) -> bool:
        return all(figures.completed == figures.requests for figures in self.rates)

    def comparable(self) -> dict[str, float]:
        return {
            f"{figures.rate:g}/s: {name}": value
            for figures in self.rates
            for name, value in figures.comparable().items()
        }


def run(console: Console, options: Options) -> int:
    """0 if every request was answered to its end, else 1."""
    begin()
    options.where.begin_record()
    if options.where.vs:
        return versus.run(
            console,
            options.where,
            POOL,
            asdict(options),
            lambda target, n: measure(target, options, n),
        )
    with options.where.served(*POOL) as target:
        sweep = measure(target, options, tell=console.print)
    limits = f"first token within {options.max_first_s:g} s, then one in {options.max_gap_s:g} s"
    console.print(f"good: {limits} on average", "", sep="\n")
    console.print(*markdown(HEADINGS, [f.cells() for f in sweep.rates]), "", sep="\n")
    for error in sweep.errors:
        console.print(f"a request failed: {error}")
    console.print(json.dumps({**circumstances(), **asdict(options), **asdict(sweep)}))
    return 0 if sweep.is_right else 1


def measure(
    target: Target,
    options: Options,
    number: int = 0,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """All rates, one after the other. `number`: of the round; other requests in each."""
    found: list[Figures] = []
    for index, rate in enumerate(options.rates):
        tell(f"{options.num_requests} requests at {rate:g} a second")
        num_before = (number * len(options.rates) + index) * options.num_requests
        first = options.where.first + num_before
        coming = list(arrivals(options.seed, options.num_requests, rate, first))
        found.append(asyncio.run(_at_rate(target, options, rate, coming)))
    return Sweep(found)


def arrivals(seed: int, count: int, rate: float, first: int = 0) -> Iterator[Arrival]:
    """With the same lengths for every rate and every `first`, at another pace and with other
    openings. `first`: how many there were before."""
    random = Random(seed)
    at_s = 0.0
    for number in range(first, first + count):
        body = mixed_request(number, _between(random, *WORDS), _between(random, *TOKENS))
        yield Arrival(at_s, body)
        at_s += random.expovariate(1.0) / rate


def _between(random: Random, least: int, most: int) -> int:
    return round(math.exp(random.uniform(math.log(least), math.log(most))))


async def _at_rate(
    target: Target, options: Options, rate: float, coming: Sequence[Arrival]
) -> Figures:
    async with target.client() as http:
        before = await target.counters(http)
        start = time.monotonic()
        chats = await asyncio.gather(*(_send(http, target, start, arrival) for arrival in coming))
        wall_s = time.monotonic() - start
        after = await target.counters(http)
    return figures_of(options, rate, chats, wall_s, _parks(chats, before, after))


async def _send(http: httpx.AsyncClient, target: Target, start: float, arrival: Arrival) -> Chat:
    await asyncio.sleep(start + arrival.at_s - time.monotonic())
    return await stream_chat(http, Chat("", target.body(arrival.body)))


def _parks(
    chats: Iterable[Chat], before: Mapping[str, float], after: Mapping[str, float]
) -> int | None:
    """By the server's count, else by what the streams tell."""
    if after:
        return round(after["n_preempt_total"] - before["n_preempt_total"])
    return sum(chat.num_parks for chat in chats) or None


def figures_of(
    options: Options, rate: float, chats: Sequence[Chat], wall_s: float, parks: int | None
) -> Figures:
    complete = [chat for chat in chats if chat.is_complete]
    firsts_s = [chat.first_piece_s for chat in complete]
    firsts_ms = [1e3 * first_s for first_s in firsts_s if first_s is not None]
    gaps_ms = [1e3 * gap for chat in complete for gap in chat.waits_s]
    return Figures(
        rate,
        requests=len(chats),
        completed=len(complete),
        wall_s=wall_s,
        first_p50_ms=percentile_or_none(firsts_ms, 50),
        first_p95_ms=percentile_or_none(firsts_ms, 95),
        gap_p50_ms=percentile_or_none(gaps_ms, 50),
        gap_p99_ms=percentile_or_none(gaps_ms, 99),
        goodput=sum(_is_good(chat, options) for chat in complete) / wall_s,
        tokens_per_s=sum(chat.num_tokens for chat in complete) / wall_s,
        parks=parks,
        errors=errors_of(chats),
    )


def _is_good(chat: Chat, options: Options) -> bool:
    first_s, mean_gap_s = chat.first_piece_s, statistics.fmean(chat.waits_s or [0.0])
    is_soon = first_s is not None and first_s <= options.max_first_s
    return is_soon and mean_gap_s <= options.max_gap_s
