"""Loads: which chats a server is sent, and when. Each is a coroutine function of a session."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import httpx

from kvalet.bench.chats import Chat, ChatState, stream_chat
from kvalet.bench.prompts import small_request
from kvalet.bench.target import Target
from kvalet.errors import EngineError

Bodies: TypeAlias = Sequence[tuple[str, Mapping[str, Any]]]  # names and chat completion bodies

POLL_S: Final = 0.005
SMALL: Final = "small"  # the name of those that `beside_small` asks


@dataclass(slots=True)
class Session:
    """One server while a load is on it. What is measured lies between `begin` and `end`: the whole
    load, unless it says otherwise."""

    target: Target
    http: httpx.AsyncClient
    chats: list[Chat] = field(default_factory=list[Chat])  # in the order in which they were sent
    counted: Mapping[str, float] = field(default_factory=dict[str, float])
    wall_s: float | None = None  # None: it was not measured to its end
    _start_s: float = 0.0
    _before: Mapping[str, float] = field(default_factory=dict[str, float])

    async def ask(self, name: str, body: Mapping[str, Any]) -> Chat:
        chat = Chat(name, self.target.body(body))
        self.chats.append(chat)
        return await stream_chat(self.http, chat)

    async def begin(self) -> None:
        self._start_s, self._before = time.monotonic(), await self._counters()

    async def end(self) -> None:
        self.wall_s = time.monotonic() - self._start_s
        after, before = await self._counters(), self._before
        self.counted = {name: after[name] - before[name] for name in after if name in before}

    async def _counters(self) -> Mapping[str, float]:
        """None, too, of a server that is gone: its chats will tell."""
        try:
            return await self.target.counters(self.http)
        except httpx.HTTPError:
            return {}

    async def play(self, load: "Load") -> str:
        """Why it broke off, if it did. A chat that fails is not a reason."""
        try:
            await self.begin()
            await load(self)
            if self.wall_s is None:
                await self.end()
        except (EngineError, httpx.HTTPError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


Load: TypeAlias = Callable[[Session], Awaitable[None]]


class Arrival(NamedTuple):
    at_s: float  # after the beginning
    body: Mapping[str, Any]


def at_once(bodies: Bodies) -> Load:
    async def play(session: Session) -> None:
        await asyncio.gather(*(session.ask(*one) for one in bodies))

    return play


def one_by_one(bodies: Bodies) -> Load:
    return in_groups(bodies, 1)


def in_groups(bodies: Bodies, size: int) -> Load:
    """That many at once, and then the next ones."""

    async def play(session: Session) -> None:
        for first in range(0, len(bodies), size):
            await at_once(bodies[first : first + size])(session)

    return play


def arriving(arrivals: Iterable[Arrival]) -> Load:
    """Whether or not earlier ones are answered."""

    async def play(session: Session) -> None:
        start = time.monotonic()

        async def send(arrival: Arrival) -> None:
            await asyncio.sleep(start + arrival.at_s - time.monotonic())
            await session.ask("", arrival.body)

        await asyncio.gather(*map(send, arrivals))

    return play


def staggered(bodies: Bodies, tokens: int) -> Load:
    """Each once the one before it has had that many tokens, or has ended."""

    async def play(session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            for count, one in enumerate(bodies):
                while len(session.chats) < count or _is_early(session.chats[:count], tokens):
                    await asyncio.sleep(POLL_S)
                group.create_task(session.ask(*one))

    return play


def _is_early(chats: Sequence[Chat], tokens: int) -> bool:
    if not chats:
        return False
    is_over = chats[-1].state in (ChatState.DONE, ChatState.FAILED)
    return chats[-1].num_pieces < tokens and not is_over


def while_all_run(bodies: Bodies) -> Load:
    """All at once; measured from when each has a token until the first of them ends."""

    async def play(session: Session) -> None:
        tasks = [asyncio.create_task(session.ask(*one)) for one in bodies]
        chats = session.chats
        while len(chats) < len(tasks) or any(chat.state is ChatState.WAITING for chat in chats):
            await asyncio.sleep(POLL_S)
        await session.begin()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await session.end()
        await asyncio.gather(*tasks)

    return play


def beside_small(load: Load) -> Load:
    """Beside one small request after another, until one fails."""

    async def ask(session: Session) -> None:
        for number in itertools.count():
            if (await session.ask(SMALL, small_request(number))).error:
                return

    async def play(session: Session) -> None:
        small = asyncio.create_task(ask(session))
        try:
            await load(session)
        finally:
            small.cancel()

    return play


def without_cache(bodies: Bodies) -> Bodies:
    """With nothing found from earlier chats, where the server can be told so."""
    return [(name, {**body, "cache_prompt": False}) for name, body in bodies]
