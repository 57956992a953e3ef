"""What a run of chats came to, as their clients saw it and as the server counted it."""

import asyncio
import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvalet.bench.chats import TIMEOUT, Chat, stream_chat, stream_together
from kvalet.bench.prompts import small_request
from kvalet.bench.report import percentile

Bodies: TypeAlias = Sequence[tuple[str, dict[str, Any]]]  # names and chat completion bodies
Texts: TypeAlias = Mapping[str, str]  # of each chat, by its name

HEADINGS = (
    *("completed", "identical", "parks", "swap", "recompute", "tokens recomputed"),
    *("wall s", "tok/s", "longest parked s (of wall)", "gap p50 / p95 ms", "small answered"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    chats: int
    completed: int  # with as many tokens as were asked for
    identical: int  # to the same chat alone
    parks: int
    swapped: int
    recomputed: int
    recomputed_tokens: int
    wall_s: float
    tokens_per_s: float  # of all chats
    longest_parked_s: float  # one pause of one chat, after its first token
    gap_p50_ms: float  # between two pieces of a chat's text, pauses apart
    gap_p95_ms: float
    small_requests: int  # answered meanwhile

    @property
    def is_right(self) -> bool:
        return self.completed == self.identical == self.chats

    def cells(self) -> tuple[str, ...]:
        """As a table's row, under HEADINGS."""
        return (
            f"{self.completed}/{self.chats}",
            f"{self.identical}/{self.chats}",
            *map(str, (self.parks, self.swapped, self.recomputed, self.recomputed_tokens)),
            f"{self.wall_s:.1f}",
            f"{self.tokens_per_s:.1f}",
            f"{self.longest_parked_s:.1f} ({self.longest_parked_s / self.wall_s:.0%})",
            f"{self.gap_p50_ms:.1f} / {self.gap_p95_ms:.1f}",
            str(self.small_requests),
        )


async def texts_alone(url: str, bodies: Bodies) -> Texts:
    """One after another, with nothing found from earlier ones."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        chats = [Chat(name, {**body, "cache_prompt": False}) for name, body in bodies]
        return {chat.name: (await stream_chat(http, chat)).text for chat in chats}


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
    num_small: int

    def figures(self, alone: Texts) -> Figures:
        chats, counted = self.chats, self.counted
        gaps_ms = [1e3 * gap for chat in chats for gap in chat.gaps_s]
        pauses_s = [pause for chat in chats for pause in chat.pauses_s]
        return Figures(
            chats=len(chats),
            completed=sum(chat.num_tokens == chat.body["max_tokens"] for chat in chats),
            identical=sum(bool(chat.text) and chat.text == alone[chat.name] for chat in chats),
            parks=round(counted["n_preempt_total"]),
            swapped=round(counted["n_preempt_swap_total"]),
            recomputed=round(counted["n_preempt_recompute_total"]),
            recomputed_tokens=round(counted["n_recompute_tokens_total"]),
            wall_s=self.wall_s,
            tokens_per_s=sum(chat.num_tokens for chat in chats) / self.wall_s,
            longest_parked_s=max(pauses_s, default=0.0),
            gap_p50_ms=percentile(gaps_ms, 50),
            gap_p95_ms=percentile(gaps_ms, 95),
            small_requests=self.num_small,
        )


async def play(url: str, bodies: Bodies, *, with_small: bool) -> Run:
    """All chats at once; `with_small`: beside one small request after another."""
    chats = [Chat(name, body) for name, body in bodies]
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        before = await server_counters(http)
        answered: list[int] = []
        small = asyncio.create_task(_send_small(http, answered)) if with_small else None
        start = time.monotonic()
        await stream_together(url, chats)
        wall_s = time.monotonic() - start
        if small is not None:
            small.cancel()
        after = await server_counters(http)
    counted = {name: after[name] - before.get(name, 0) for name in after}
    return Run(chats, wall_s, counted, len(answered))


async def server_counters(http: httpx.AsyncClient) -> Mapping[str, float]:
    """Samples of /metrics without labels, by their names after `llamacpp:`."""
    text = (await http.get("/metrics")).raise_for_status().text
    return {
        sample.name.removeprefix("llamacpp:"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


async def _send_small(http: httpx.AsyncClient, answered: list[int]) -> None:
    """One small request after another, for ever; counts in `answered`."""
    for number in itertools.count():
        response = await http.post("/v1/chat/completions", json=small_request(number))
        response.raise_for_status()
        answered.append(number)
