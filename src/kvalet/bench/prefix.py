"""`kvalet bench prefix`: the second turn of a chat, wherever the pages of the first ended up.

A history of about 1,400 tokens, then one question after another about it: with the pages of the
history still in the pool, pushed out of it into the host store by other chats, and read back from a
state file by a server that has just started; each beside the same question asked cold, with
`cache_prompt` off. Time to first token is the client's, from sending to the first text. An answer
counts as new if its text comes back as other tokens than were drawn.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import httpx
from rich.console import Console

from kvalet.bench.chats import TIMEOUT, Chat, stream_chat
from kvalet.bench.prompts import long_messages
from kvalet.bench.report import begin, circumstances, markdown, spread
from kvalet.bench.target import Where, server_counters
from kvalet.errors import EngineError

POOL: Final = ("--ctx-size", "4096", "--parallel", "4")
PLACES: Final = ("pool", "host", "disk")
COLD: Final = "computed"
QUESTIONS: Final = {
    "pool": "Which of these would you do first, and why?",
    "host": "Say in three sentences what they have in common.",
    "disk": "What is missing that a reader would want to know?",
}
NUM_TOKENS: Final = 32  # of each answer
SLACK: Final = 32  # most tokens computed beside the new ones
STATE_FILE: Final = "history.kvalet"

HEADINGS: Final = (
    *("pages of the first turn", "time to first token ms", "times faster than cold"),
    *("prompt tokens", "new", "computed", "cached", "pages from the host", "as cold"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A second turn. Counts in tokens."""

    history: int  # its number
    place: str  # of the first turn's pages
    first_token_ms: float | None  # None: no text came
    num_prompt: int
    num_new: int  # not computed by the first turn
    num_computed: int
    num_cached: int
    num_host_pages: int  # of the prompt, found in the host store
    text: str
    cold_ms: float | None = None  # the same question's time to first token
    is_as_cold: bool = True

    @property
    def times_faster(self) -> float | None:
        return ratio(self.cold_ms, self.first_token_ms)

    @property
    def is_right(self) -> bool:
        is_short = self.place == COLD or self.num_computed <= self.num_new + SLACK
        came_from_host = (self.num_host_pages > 0) == (self.place in ("host", "disk"))
        return bool(self.text) and self.is_as_cold and is_short and came_from_host


@dataclass(frozen=True, slots=True)
class History:
    """The first turn, answered: what each second turn begins with."""

    messages: list[dict[str, str]]
    num_known: int  # its tokens in the KV cache

    def ask(self, question: str) -> list[dict[str, str]]:
        return [*self.messages, {"role": "user", "content": question}]


def run(console: Console, where: Where) -> int:
    """0 if every second turn computed no more than it had to, with the cold text; else 1."""
    begin()
    turns = measure(console, where)
    console.print(*markdown(HEADINGS, rows(turns)), "", sep="\n")
    wrong = [turn for turn in turns if not turn.is_right]
    for turn in wrong:
        console.print(f"too much computed, not found, or not as cold: {turn}")
    result = {"where": asdict(where), "turns": [_told(turn) for turn in turns]}
    console.print(json.dumps({**circumstances(), **result}))
    return 1 if wrong else 0


def measure(console: Console, where: Where) -> list[Turn]:
    turns: list[Turn] = []
    for number in range(where.num_rounds):
        console.print(f"round {number + 1}")
        turns += _round(where, where.first + number)
    return turns


def _round(where: Where, number: int) -> list[Turn]:
    """`number`: of the history."""
    with tempfile.TemporaryDirectory() as folder:
        saving = ("--slot-save-path", folder)
        with where.start(*POOL, more=saving) as server:
            history, turns = asyncio.run(_in_memory(server.url, number))
        with where.start(*POOL, more=saving) as server:
            return turns + asyncio.run(_from_disk(server.url, number, history))


async def _in_memory(url: str, number: int) -> tuple[History, list[Turn]]:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        history = await _first_turn(http, number)
        await _slot(http, "save")
        turns = await _second_turns(http, number, "pool", history)
        await _fill_pool(http, number)
        return history, turns + await _second_turns(http, number, "host", history)


async def _from_disk(url: str, number: int, history: History) -> list[Turn]:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        await _slot(http, "restore")
        return await _second_turns(http, number, "disk", history)


async def _first_turn(http: httpx.AsyncClient, number: int) -> History:
    messages = long_messages(number)
    chat = await _ask(http, messages)
    answered = [*messages, {"role": "assistant", "content": chat.text}]
    told = (await http.post("/tokenize", json={"content": chat.text})).raise_for_status().json()
    is_same = len(told["tokens"]) == chat.num_tokens
    num_answer = chat.num_tokens - 1 if is_same else 0  # the last token was drawn, not computed
    return History(answered, chat.num_prompt + num_answer)


async def _second_turns(
    http: httpx.AsyncClient, number: int, place: str, history: History
) -> list[Turn]:
    """Cold, and then with what the first turn left."""
    messages = history.ask(QUESTIONS[place])
    aside: dict[str, object] = {"cache_prompt": False, "id_slot": 1}
    cold = await _second_turn(http, number, COLD, history, messages, **aside)
    warm = await _second_turn(http, number, place, history, messages)
    same = cold.text == warm.text
    return [cold, replace(warm, cold_ms=cold.first_token_ms, is_as_cold=same)]


async def _second_turn(
    http: httpx.AsyncClient,
    number: int,
    place: str,
    history: History,
    messages: list[dict[str, str]],
    **more: object,
) -> Turn:
    before = await server_counters(http)
    chat = await _ask(http, messages, **more)
    after = await server_counters(http)
    name = "prefix_pages_host_total"
    return Turn(
        number,
        place,
        first_token_ms=milliseconds(chat.first_piece_s),
        num_prompt=chat.num_prompt,
        num_new=chat.num_prompt - history.num_known,
        num_computed=chat.num_computed,
        num_cached=chat.num_cached,
        num_host_pages=round(after[name] - before[name]),
        text=chat.text,
    )


async def _fill_pool(http: httpx.AsyncClient, number: int) -> None:
    """Other chats, until no page that was there before can still be."""
    num_cells, num_filled = (await server_counters(http))["kv_cells_total"], 0
    for other in range(1, 100):
        if num_filled >= num_cells:
            return
        chat = await _ask(http, long_messages(1000 * (number + 1) + other), id_slot=1)
        num_filled += chat.num_prompt


async def _ask(http: httpx.AsyncClient, messages: list[dict[str, str]], **more: object) -> Chat:
    """Raises EngineError if that fails."""
    settings = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "id_slot": 0}
    chat = await stream_chat(http, Chat("", {"messages": messages, **settings, **more}))
    if chat.error:
        raise EngineError(f"a chat failed: {chat.error}")
    return chat


async def _slot(http: httpx.AsyncClient, action: str) -> None:
    response = await http.post(f"/slots/0?action={action}", json={"filename": STATE_FILE})
    if response.is_error:
        raise EngineError(f"{action} failed: {response.text}")


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b; None if one of them is missing."""
    return None if a is None or b is None else a / b


def rows(turns: Sequence[Turn]) -> Iterator[list[str]]:
    """Of all rounds; medians and ranges."""
    for place in (COLD, *PLACES):
        found = [turn for turn in turns if turn.place == place]
        faster = [turn.times_faster for turn in found if place != COLD]
        as_cold = f"{sum(turn.is_as_cold for turn in found)}/{len(found)}"
        yield [
            place,
            spread([turn.first_token_ms for turn in found], 0),
            spread(faster, 1),
            spread([turn.num_prompt for turn in found], 0),
            spread([turn.num_new for turn in found], 0),
            spread([turn.num_computed for turn in found], 0),
            spread([turn.num_cached for turn in found], 0),
            spread([turn.num_host_pages for turn in found], 0),
            "-" if place == COLD else as_cold,
        ]


def _told(turn: Turn) -> Mapping[str, Any]:
    return {name: value for name, value in asdict(turn).items() if name != "text"}
