"""`kvalet bench prefix` of any OpenAI-compatible server: second turns.

A history of about 1,400 tokens, answered; then a question about it, which a server that keeps what
it computed answers sooner, beside the same question about another history, which it has never seen.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import httpx
from rich.console import Console

from kvalet.bench import versus
from kvalet.bench.chats import Chat, stream_chat
from kvalet.bench.prefix import NUM_TOKENS, POOL, QUESTIONS, milliseconds, ratio
from kvalet.bench.prompts import long_messages
from kvalet.bench.report import begin, circumstances, known, markdown, spread
from kvalet.bench.target import Target, Where, at
from kvalet.errors import EngineError

HEADINGS: Final = (
    *("second turn", "time to first token ms", "times faster than cold"),
    *("prompt tokens", "found, as told"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    first_token_ms: float | None  # None: no text came
    num_prompt: int  # 0: the server does not say
    num_cached: int  # likewise


@dataclass(frozen=True, slots=True)
class Turns:
    """A question about a history that was seen, and about one that was not."""

    warm: Turn
    cold: Turn

    @property
    def is_right(self) -> bool:
        return self.times_faster is not None

    @property
    def errors(self) -> Sequence[str]:
        return ()  # a chat that fails ends the benchmark

    @property
    def times_faster(self) -> float | None:
        return ratio(self.cold.first_token_ms, self.warm.first_token_ms)

    def comparable(self) -> dict[str, float]:
        figures = {
            "first token of a second turn ms": self.warm.first_token_ms,
            "first token of a cold one ms": self.cold.first_token_ms,
            "times faster than cold": self.times_faster,
        }
        return known(figures)


def run(console: Console, where: Where) -> int:
    """0 if every turn was answered, else 1."""
    begin()
    if where.vs:
        return versus.run(
            console,
            where,
            POOL,
            {"where": asdict(where)},
            lambda target, number: measure(target, where, number),
        )
    if where.url is None:
        raise EngineError("there is no server to ask")
    target = at(where.url)
    found = [measure(target, where, number) for number in range(where.num_rounds)]
    console.print(*markdown(HEADINGS, rows(found)), "", sep="\n")
    turns = {"where": asdict(where), "rounds": [asdict(turns) for turns in found]}
    console.print(json.dumps({**circumstances(), **turns}))
    return 0 if all(turns.is_right for turns in found) else 1


def measure(target: Target, where: Where, number: int) -> Turns:
    """`number`: of the round; two histories in each, that no earlier one has had."""
    return asyncio.run(_measure(target, where.first + 2 * number))


async def _measure(target: Target, first: int) -> Turns:
    async with target.client() as http:
        seen, other = long_messages(first), long_messages(first + 1)
        answer = await _ask(http, target, seen)
        then = [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": QUESTIONS["pool"]},
        ]
        warm = await _ask(http, target, [*seen, *then])
        cold = await _ask(http, target, [*other, *then])
    return Turns(_turn(warm), _turn(cold))


async def _ask(http: httpx.AsyncClient, target: Target, messages: list[dict[str, str]]) -> Chat:
    """Raises EngineError if that fails."""
    body: dict[str, Any] = {"messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0}
    chat = await stream_chat(http, Chat("", target.body({**body, "ignore_eos": True})))
    if chat.error:
        raise EngineError(f"a chat failed: {chat.error}")
    return chat


def _turn(chat: Chat) -> Turn:
    return Turn(milliseconds(chat.first_piece_s), chat.num_prompt, chat.num_cached)


def rows(found: Sequence[Turns]) -> Iterator[list[str]]:
    """Medians and ranges."""
    kinds: tuple[tuple[str, Callable[[Turns], Turn]], ...] = (
        ("cold", lambda turns: turns.cold),
        ("warm", lambda turns: turns.warm),
    )
    for name, of in kinds:
        yield [
            name,
            spread([of(turns).first_token_ms for turns in found], 0),
            "-" if name == "cold" else spread([turns.times_faster for turns in found], 1),
            spread([of(turns).num_prompt for turns in found], 0),
            spread([of(turns).num_cached for turns in found], 0),
        ]
