"""`kvalet bench prefix`: the second turn of a chat, wherever the pages of the first ended up.

A history of about 1,400 tokens, then one question after another about it. Of a server that is
started: with the pages of the history still in the pool, pushed out of it into the host store by
other chats, and read back from a state file after a restart; each beside the same question asked
cold, with `cache_prompt` off. Of any other: a question, beside the same question about a history
that the server has not seen.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from kvalet.bench.chats import Chat
from kvalet.bench.figures import counts, ratio
from kvalet.bench.harness import Case, Played
from kvalet.bench.loads import Load, Session
from kvalet.bench.prompts import long_messages
from kvalet.bench.report import Row
from kvalet.bench.target import Where
from kvalet.errors import EngineError

Messages: TypeAlias = list[dict[str, str]]

FIRST_TURN, SECOND_TURN, COLD = "first turn", "second turn", ", cold"
POOL, HOST, DISK = "pool", "host", "disk"
QUESTIONS: Final = {
    POOL: "Which of these would you do first, and why?",
    HOST: "Say in three sentences what they have in common.",
    DISK: "What is missing that a reader would want to know?",
}
NUM_TOKENS: Final = 32  # of each answer
PAGE: Final = 32  # tokens that are found together or not at all
STATE_FILE: Final = "history.kvalet"


@dataclass(frozen=True, slots=True)
class Prefix:
    POOL: ClassVar[tuple[str, ...]] = ("--ctx-size", "4096", "--parallel", "4")
    ROUNDS: ClassVar[int] = 3
    needs_own: ClassVar[str] = ""

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        if not where.is_own:
            yield from _anywhere(where.first + 2 * number, played)
            return
        with tempfile.TemporaryDirectory() as folder:
            yield from _places(where.first + number, played, ("--slot-save-path", folder))

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        first = _asked(played[FIRST_TURN])
        known = first.num_prompt + first.num_tokens - 1  # the last token was drawn, not computed
        for name, one in played.items():
            if name != FIRST_TURN:
                yield _row(name, one, played.get(name + COLD), known)


def _anywhere(first: int, played: Mapping[str, Played]) -> Iterator[Case]:
    seen, other = long_messages(first), long_messages(first + 1)
    yield Case(FIRST_TURN, asking(seen))
    then = _then(played, POOL)
    yield Case(SECOND_TURN, asking([*seen, *then]))
    yield Case(SECOND_TURN + COLD, asking([*other, *then]))


def _places(number: int, played: Mapping[str, Played], flags: tuple[str, ...]) -> Iterator[Case]:
    """`number`: of the history. Slot 0 is for what keeps it, slot 1 for all that is beside."""
    history = long_messages(number)
    yield Case(FIRST_TURN, asking(history, id_slot=0), flags)
    preparations = {POOL: slot("save"), HOST: filling(number), DISK: slot("restore")}
    for place, prepare in preparations.items():
        messages = [*history, *_then(played, place)]
        cold = asking(messages, prepare, id_slot=1, cache_prompt=False)
        yield Case(place + COLD, cold, flags, is_fresh=place == DISK)
        yield Case(place, asking(messages, id_slot=0), flags)


def _then(played: Mapping[str, Played], place: str) -> Messages:
    answer = {"role": "assistant", "content": _asked(played[FIRST_TURN]).text}
    return [answer, {"role": "user", "content": QUESTIONS[place]}]


def _asked(one: Played) -> Chat:
    """The chat that the case is about; one that was never sent, if it broke off before."""
    return next((chat for chat in one.chats if chat.name), Chat("", {}))


async def _nothing(session: Session) -> None:
    pass


def asking(messages: Messages, prepare: Load = _nothing, **more: object) -> Load:
    """One chat, measured alone."""

    async def play(session: Session) -> None:
        await prepare(session)
        await session.begin()
        await session.ask("asked", _body(messages, more))

    return play


def _body(messages: Messages, more: Mapping[str, object]) -> dict[str, object]:
    settings = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    return {"messages": messages, **settings, **more}


def slot(action: str) -> Load:
    """Of slot 0."""

    async def play(session: Session) -> None:
        path = f"/slots/0?action={action}"
        response = await session.http.post(path, json={"filename": STATE_FILE})
        if response.is_error:
            raise EngineError(f"{action}: {response.text}")

    return play


def filling(number: int) -> Load:
    """Other chats, until no page that was in the pool before can still be."""

    async def play(session: Session) -> None:
        num_cells = (await session.target.counters(session.http))["kv_cells_total"]
        num_filled, other = 0, 1000 * (number + 1)
        while num_filled < num_cells:
            chat = await session.ask("", _body(long_messages(other), {"id_slot": 1}))
            if not chat.is_complete:
                return
            num_filled, other = num_filled + chat.num_prompt, other + 1

    return play


def _row(name: str, one: Played, cold: Played | None, known: int) -> Row:
    """`known`: tokens of the first turn."""
    chat, cold_chat = _asked(one), _asked(cold) if cold else None
    new = chat.num_prompt - known if chat.num_prompt else None
    from_host = one.counted.get("prefix_pages_host_total")
    first_s, cold_s = chat.first_piece_s, cold_chat.first_piece_s if cold_chat else None
    figures = {
        **counts(one.chats),
        "first token ms": None if first_s is None else 1e3 * first_s,
        "times faster than cold": ratio(cold_s, first_s),
        "prompt tokens": chat.num_prompt or None,
        "new": new,
        "computed": chat.num_computed or None,
        "cached": chat.num_cached,
        "pages from the host": from_host,
    }
    faults = [] if chat.text else ["no text came"]
    if cold_chat and name in QUESTIONS and chat.is_complete:
        if cold_chat.text != chat.text:
            faults.append("not as cold")
        # The answer may come back as other tokens than were drawn.
        if chat.num_computed > (new or 0) + PAGE + NUM_TOKENS:
            faults.append(f"{chat.num_computed} tokens computed, of which {new} are new")
        if from_host is not None and bool(from_host) != (name != POOL):
            faults.append(f"{from_host:.0f} pages from the host")
    return Row(name, figures, faults)
