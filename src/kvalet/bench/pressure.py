"""`kvalet bench pressure`: chats that do not fit together, and what that costs.

Chats at once, on one server or on one for each setting: of budgets and policies, of entry orders
under uneven chats, or of copies ahead of a park; then the same chats alone, to compare the texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from kvalet.bench.chats import Chat
from kvalet.bench.figures import (
    MIB,
    PARKS,
    Figures,
    counts,
    gaps_s,
    num_same,
    percentile,
    percentiles,
    rate,
    ratio,
    swaps,
    told,
)
from kvalet.bench.harness import Case, Played
from kvalet.bench.loads import (
    SMALL,
    Bodies,
    at_once,
    beside_small,
    one_by_one,
    without_cache,
)
from kvalet.bench.prompts import pressing_chats, uneven_chats
from kvalet.bench.report import Row
from kvalet.bench.target import Where
from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES
from kvalet.errors import ConfigError

ALONE: Final = "alone"
TOGETHER: Final = "at once"
NUM_CHATS, NUM_UNEVEN = 4, 8
UNLIMITED, DEFAULT = "-1", "default"


@dataclass(frozen=True, slots=True)
class Pressure:
    chats: int | None = None
    tokens: int = 700
    small: bool = False
    kind: str = "once"  # or "matrix", "uneven", "mirror"
    POOL: ClassVar[tuple[str, ...]] = ("--ctx-size", "2048", "--parallel", "4")
    ROUNDS: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.kind == "uneven" and self.chats:
            raise ConfigError("--chats: --uneven has eight chats of its own")

    @property
    def needs_own(self) -> str:
        told = f"--{self.kind} starts servers of its own: leave --url and --vs out"
        return "" if self.kind == "once" else told

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        bodies = self._bodies(where.first, number)
        load = beside_small(at_once(bodies)) if self.small else at_once(bodies)
        for flags in self._settings(played):
            yield Case(" ".join(flags) or TOGETHER, load, _given(flags))
        yield Case(ALONE, one_by_one(without_cache(bodies)))

    def _bodies(self, first: int, number: int) -> Bodies:
        if self.kind == "uneven":
            return uneven_chats(self.tokens, first=first + number * NUM_UNEVEN)
        count = self.chats or NUM_CHATS
        return pressing_chats(self.tokens, count, first=first + number * count)

    def _settings(self, played: Mapping[str, Played]) -> Iterator[tuple[str, ...]]:
        """Flags of the server, of each run."""
        if self.kind == "uneven":
            yield from (("--preempt-resume", order) for order in LINE_ORDERS)
        elif self.kind == "mirror":
            yield from (("--preempt-mirror", state) for state in ("on", "off"))
        elif self.kind == "matrix":
            yield from _matrix(played)
        else:
            yield ()

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
        if self.kind == "mirror":
            figures |= _copies(one)
        faults = [] if same == len(chats) else [f"{same} of {len(chats)} texts as alone"]
        if figures["parks"] == 0 and self.kind != "uneven":
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
    sizes = [park.num_bytes / MIB for park in swaps(log)] or [0.0]
    least, most = min(sizes), max(sizes)
    wanted = {max(1, round(least + share * (most - least))) for share in (1 / 3, 2 / 3)}
    return [str(budget) for budget in sorted(wanted)]


def _copies(one: Played) -> Figures:
    """How long parks took and what each still had to copy, as the server's log says; what was
    copied ahead of them too, and how busy the copier was."""
    parks = list(swaps(one.log))
    counted = one.counted
    num_bytes = counted.get("preempt_bytes_out_total", 0) + counted.get("mirror_bytes_total", 0)
    busy = ratio(counted.get("copy_seconds_total"), one.wall_s)
    return {
        **percentiles("park", (park.ms / 1e3 for park in parks), 50, 95, 100),
        "MiB copied by a park": percentile([park.num_bytes / MIB for park in parks], 50),
        "MiB copied in all": num_bytes / MIB,
        "copier busy %": None if busy is None else 100 * busy,
    }
