"""`kvalet bench decode`: tokens per second over HTTP, and what part of a step is not ggml's.

One chat, then four at once, in an ample pool. From the moment all chats have a token until the
first one ends, wall time is compared with the time the server spent in ggml's graph executor. The
last line of its output is JSON.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from rich.console import Console

from kvalet.bench.chats import Chat, ChatState, stream_chat, stream_together
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import begin, circumstances, markdown, spread
from kvalet.bench.target import Target, Where
from kvalet.errors import EngineError

COUNTS: Final = (1, 4)  # chats at once
WARM_UP_TOKENS: Final = 8  # the first steps build graphs
POLL_S: Final = 0.005

HEADINGS: Final = ("chats", "tok/s (range)", "step ms", "of it in ggml ms", "outside")


@dataclass(frozen=True, slots=True)
class Options:
    where: Where = field(default_factory=Where)
    num_tokens: int = 300


@dataclass(frozen=True, slots=True)
class Decoding:
    num_chats: int
    tokens_per_s: float
    step_ms: float
    compute_ms: float

    @property
    def outside(self) -> float:
        """Part of a step that is not ggml's compute."""
        return 1 - self.compute_ms / self.step_ms


def run(console: Console, options: Options) -> int:
    """0; an EngineError if a chat ended early."""
    begin()
    options.where.begin_record()
    found = measure(options)
    console.print(*markdown(HEADINGS, rows(found)), "", sep="\n")
    told = [asdict(decoding) for decoding in found]
    console.print(json.dumps({**circumstances(), **asdict(options), "runs": told}))
    return 0


def measure(options: Options) -> list[Decoding]:
    with options.where.start() as server:
        target = Target(server.url)
        asyncio.run(stream_together(server.url, _chats(max(COUNTS), WARM_UP_TOKENS)))
        return [
            asyncio.run(decode(target, count, options.num_tokens))
            for count in COUNTS
            for _ in range(options.where.num_rounds)
        ]


async def decode(target: Target, num_chats: int, num_tokens: int) -> Decoding:
    chats = _chats(num_chats, num_tokens)
    async with target.client() as http:
        tasks = [asyncio.create_task(stream_chat(http, chat)) for chat in chats]
        while any(chat.state is ChatState.WAITING for chat in chats):
            await asyncio.sleep(POLL_S)
        start, before = time.monotonic(), await target.counters(http)
        # What comes after the first end is of fewer chats.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        wall_s, after = time.monotonic() - start, await target.counters(http)
        await asyncio.gather(*tasks)
    for chat in chats:
        if not chat.is_complete:
            raise EngineError(f"{chat.name} ended early: {chat.error or chat.finish_reason}")
    counted = {name: after[name] - before[name] for name in after}
    num_steps = counted["n_decode_total"]
    if not num_steps:
        raise EngineError(f"{num_tokens} tokens are over too soon to be measured")
    return Decoding(
        num_chats,
        counted["tokens_predicted_total"] / wall_s,
        1e3 * wall_s / num_steps,
        1e3 * counted["compute_seconds_total"] / num_steps,
    )


def _chats(count: int, num_tokens: int) -> list[Chat]:
    return [Chat(name, body) for name, body in pressing_chats(num_tokens, count)]


def rows(found: Sequence[Decoding]) -> Iterator[list[str]]:
    """Medians and, of speeds, ranges."""
    for count in COUNTS:
        of_count = [decoding for decoding in found if decoding.num_chats == count]
        yield [
            str(count),
            spread([decoding.tokens_per_s for decoding in of_count], 1),
            f"{statistics.median(decoding.step_ms for decoding in of_count):.2f}",
            f"{statistics.median(decoding.compute_ms for decoding in of_count):.2f}",
            f"{statistics.median(decoding.outside for decoding in of_count):.1%}",
        ]
