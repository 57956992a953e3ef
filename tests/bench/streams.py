"""Streams of chats, and what was played, written short."""

from collections.abc import Iterable, Mapping, Sequence

from kvalet.bench.chats import Chat, ChatState, Moment, MomentKind
from kvalet.bench.harness import Played

PARKED = {
    "n_preempt_total": 3.0,
    "n_preempt_swap_total": 2.0,
    "n_preempt_recompute_total": 1.0,
    "n_recompute_tokens_total": 40.0,
    "preempt_bytes_out_total": float(2 << 20),
    "preempt_bytes_in_total": float(1 << 20),
}


def moments(text: str) -> list[Moment]:
    """`"sent 0, piece 0.1"`: kinds and seconds."""
    words = (word.split() for word in text.split(", "))
    return [Moment(MomentKind(kind), float(at_s)) for kind, at_s in words]


def steps(first: int, last: int, *, step_s: float = 1.0, late_s: float = 0.0) -> list[Moment]:
    """A piece at the end of each of those steps."""
    times = (step_s * number + late_s for number in range(first, last + 1))
    return [Moment(MomentKind.PIECE, at_s) for at_s in times]


def chat(
    name: str, told: Iterable[Moment] = (), *, tokens: int = 1, of: int = 1, text: str = "text"
) -> Chat:
    """One that has ended with `tokens` of the tokens it asked for, as the server counts."""
    found = sorted(told, key=lambda moment: moment.at_s)
    body = {"max_tokens": of, "ignore_eos": True}
    ended = Chat(name, body, ChatState.DONE, text, moments=found, finish_reason="length")
    ended.num_tokens, ended.is_counted = tokens, True
    return ended


def failed(name: str, why: str = "no room") -> Chat:
    found = Chat(name, {"max_tokens": 1}, moments=moments("sent 0"))
    found.fail(why)
    return found


def played(
    chats: Sequence[Chat], counted: Mapping[str, float] | None = None, log: str = ""
) -> Played:
    """In ten seconds."""
    return Played(chats, 10.0, counted or {}, log)
