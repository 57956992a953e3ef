"""Named figures of what was played: of chats, as their clients saw them, and of the server, if it
counts. One that there is none of is None, never 0."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from kvalet.bench.chats import Chat

Figures: TypeAlias = Mapping[str, float | None]

MIB: Final = 1 << 20
PARKS: Final = {
    "parks": "n_preempt_total",
    "swapped": "n_preempt_swap_total",
    "recomputed": "n_preempt_recompute_total",
    "tokens recomputed": "n_recompute_tokens_total",
}


def counts(chats: Sequence[Chat]) -> Figures:
    return {
        "chats": len(chats),
        "complete": sum(chat.is_complete for chat in chats),
        "stopped early": sum(chat.has_stopped_early for chat in chats),
        "failed": sum(bool(chat.error) for chat in chats),
    }


def percentiles(name: str, seconds: Iterable[float | None], *percents: float) -> Figures:
    """In milliseconds, of those that are not None. By nearest rank: each is one that occurred."""
    ms = [1e3 * value for value in seconds if value is not None]
    return {f"{name} {_of(percent)} ms": percentile(ms, percent) for percent in percents}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """None of nothing."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if values else None


def _of(percent: float) -> str:
    return "max" if percent == 100 else f"p{percent:g}"


def told(counted: Mapping[str, float], names: Mapping[str, str], unit: float = 1.0) -> Figures:
    """The server's counters under other names."""
    return {name: counted[of] / unit if counted else None for name, of in names.items()}


def ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def rate(chats: Iterable[Chat], wall_s: float | None) -> float | None:
    """Tokens a second."""
    return ratio(sum(chat.num_tokens for chat in chats), wall_s)


def num_same(chats: Iterable[Chat], others: Iterable[Chat]) -> int:
    """Those complete with the text that the one of the same name has among the others, and that
    complete as well. What broke off is like nothing."""
    texts = {chat.name: chat.text for chat in others if chat.is_complete and chat.text}
    return sum(chat.is_complete and texts.get(chat.name) == chat.text for chat in chats)


def first_difference(text: str, other: str) -> int:
    """The character from which two texts differ: the length of the shorter one at most."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


def gaps_s(chats: Iterable[Chat], of: Callable[[Chat], Sequence[float]]) -> list[float]:
    return [gap for chat in chats for gap in of(chat)]
