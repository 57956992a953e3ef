"""Streams of chats, written short."""

from collections.abc import Iterable

from kvalet.bench.chats import Chat, Moment, MomentKind


def moments(text: str) -> list[Moment]:
    """`"sent 0, piece 0.1"`: kinds and seconds."""
    words = (word.split() for word in text.split(", "))
    return [Moment(MomentKind(kind), float(at_s)) for kind, at_s in words]


def chat(name: str, told: Iterable[Moment], *, num_tokens: int = 0, text: str = "") -> Chat:
    """One that got as many tokens as it asked for, `num_tokens`."""
    found = sorted(told, key=lambda moment: moment.at_s)
    body = {"max_tokens": num_tokens}
    return Chat(name, body, moments=found, num_tokens=num_tokens, text=text)


def steps(first: int, last: int, *, step_s: float = 1.0, late_s: float = 0.0) -> list[Moment]:
    """A piece at the end of each of those steps."""
    times = (step_s * number + late_s for number in range(first, last + 1))
    return [Moment(MomentKind.PIECE, at_s) for at_s in times]
