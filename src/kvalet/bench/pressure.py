"""`kvalet bench pressure`: chats that do not fit together, and what that costs.

Chats at once, on one server or on one for each budget and victim policy; then the same chats alone,
to compare the texts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from kvalet.bench.chats import Chat
from kvalet.bench.figures import (
    MIB,
    PARKS,
    counts,
    gaps_s,
    num_same,
    percentiles,
    rate,
    told,
)
from kvalet.bench.harness import Case, Played
from kvalet.bench.loads import (
    SMALL,
    at_once,
    beside_small,
    one_by_one,
    without_cache,
)
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import Row
from kvalet.bench.target import Where
from kvalet.core.policy import VICTIM_POLICIES

ALONE, TOGETHER = "alone", "at once"
NUM_CHATS: Final = 4
UNLIMITED, DEFAULT = "-1", "default"
SWAP: Final = re.compile(r" park: .*bytes=(\d+) mode=swap ")  # what the server's log says of it


@dataclass(frozen=True, slots=True)
class Pressure:
    chats: int = NUM_CHATS
    tokens: int = 700
    small: bool = False
    matrix: bool = False
    POOL: ClassVar[tuple[str, ...]] = ("--ctx-size", "2048", "--parallel", "4")
    ROUNDS: ClassVar[int] = 1

    @property
    def needs_own(self) -> str:
        told = "--matrix starts servers of its own: leave --url and --vs out"
        return told if self.matrix else ""

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        first = where.first + number * self.chats
        bodies = pressing_chats(self.tokens, self.chats, first=first)
        load = beside_small(at_once(bodies)) if self.small else at_once(bodies)
        for flags in _matrix(played) if self.matrix else [()]:
            yield Case(" ".join(flags) or TOGETHER, load, _given(flags))
        yield Case(ALONE, one_by_one(without_cache(bodies)))

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        alone = played[ALONE].chats
        for name, one in played.items():
            if name != ALONE:
                yield self._row(name, one, alone)

    def _row(self, name: str, one: Played, alone: Sequence[Chat]) -> Row:
        chats = [chat for chat in one.chats if chat.name != SMALL]
        same = num_same(chats, alone)
        # To fail takes no time.
        wall_s = one.wall_s if any(chat.is_complete for chat in chats) else None
        pauses = gaps_s(chats, lambda chat: chat.pauses_s)
        gaps = gaps_s(chats, lambda chat: chat.gaps_s) if wall_s else []
        figures: dict[str, float | None] = {
            **counts(chats),
            "as alone": same,
            **told(one.counted, PARKS),
            "wall s": wall_s,
            "tok/s": rate(chats, wall_s),
            "longest parked s": max(pauses, default=0.0) if wall_s else None,
            **percentiles("gap", gaps, 50, 95),
        }
        if self.small:
            small = [chat for chat in one.chats if chat.name == SMALL]
            figures["small answered"] = sum(chat.is_complete for chat in small)
        faults = [] if same == len(chats) else [f"{same} of {len(chats)} texts as alone"]
        if figures["parks"] == 0:
            faults.append("nothing was parked, so nothing pressed")
        return Row(name, figures, faults)


def _given(words: Sequence[str]) -> tuple[str, ...]:
    """Without flags that keep their default."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return tuple(word for pair in pairs if pair[1] != DEFAULT for word in pair)


def _matrix(played: Mapping[str, Played]) -> Iterator[tuple[str, ...]]:
    """Every budget under every policy. Two of the budgets lie among the sizes of the parks that
    the first run had."""
    first, *others = VICTIM_POLICIES
    yield ("--preempt-policy", first, "--preempt-ram", UNLIMITED)
    (log,) = (one.log for one in played.values())
    fewer = (DEFAULT, "0", *budgets_between(log))
    yield from (("--preempt-policy", first, "--preempt-ram", budget) for budget in fewer)
    for policy in others:
        for budget in (UNLIMITED, *fewer):
            yield ("--preempt-policy", policy, "--preempt-ram", budget)


def budgets_between(log: str) -> list[str]:
    """In MiB, at a third and two thirds of the way from the smallest park to the largest."""
    sizes = [int(num_bytes) / MIB for num_bytes in SWAP.findall(log)] or [0.0]
    least, most = min(sizes), max(sizes)
    wanted = {max(1, round(least + share * (most - least))) for share in (1 / 3, 2 / 3)}
    return [str(budget) for budget in sorted(wanted)]
