"""Who is parked and who comes back first: plain functions.

A policy is an order: the candidate with the smallest key is parked first; a new one is one function
in VICTIM_POLICIES. Which sequences are candidates at all (never the leader, only those whose
parking gains a page) is decided here too, once, for every policy (behaviour P2).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from kvalet.core.plan import PageId
from kvalet.core.sequence import RUNNING, Sequence

NO_LIMIT: Final = 1 << 31  # tokens that nobody generates

VictimKey: TypeAlias = Callable[[Sequence], tuple[Any, ...]]


def smallest(seq: Sequence) -> tuple[int, ...]:
    """Fewest tokens held: cheapest to bring back. Ties: the later arrival."""
    return (seq.num_computed, -seq.seq_id)


def largest(seq: Sequence) -> tuple[int, ...]:
    return (-seq.num_computed, -seq.seq_id)


def youngest(seq: Sequence) -> tuple[int, ...]:
    return (-seq.seq_id,)


def oldest(seq: Sequence) -> tuple[int, ...]:
    return (seq.seq_id,)


def furthest(seq: Sequence) -> tuple[int, ...]:
    """Furthest from its end: holds little, which is cheap to bring back, and may generate much,
    which would keep others out for long. Who has no limit comes before who has one."""
    allowed = NO_LIMIT if seq.request.max_new_tokens is None else seq.request.max_new_tokens
    return (seq.num_computed - (allowed - seq.num_generated), -seq.seq_id)


VICTIM_POLICIES: Final[Mapping[str, VictimKey]] = {
    policy.__name__: policy for policy in (smallest, largest, youngest, oldest, furthest)
}


def longest_waiting(seq: Sequence) -> tuple[int, ...]:
    """Order of the line: tier, then when its waiting began."""
    return (-seq.request.priority, seq.line_ticket)


def parked_first(seq: Sequence) -> tuple[int, ...]:
    """What was parked comes back before what is new comes in, each in turn. Endless chats come and
    go for ever and would hold off a new one, so they have no such right."""
    comes_back = seq.num_preempts > 0 and not seq.is_endless
    return (-seq.request.priority, not comes_back, seq.line_ticket)


def most_preempted(seq: Sequence) -> tuple[int, ...]:
    """Those that made way stand behind, in turn: how often they were parked gives them nothing."""
    num_preempts = 0 if seq.makes_way else seq.num_preempts
    return (-seq.request.priority, seq.makes_way, -num_preempts, seq.line_ticket)


LINE_ORDERS: Final[Mapping[str, VictimKey]] = {
    "head": longest_waiting,
    "parked": parked_first,
    "pass": most_preempted,
}
PASSING: Final = frozenset({"pass"})  # orders in which whoever fits may pass who does not


def leader(residents: Iterable[Sequence]) -> Sequence | None:
    """The one that is never parked for pressure, so that one chat always makes progress: most
    tokens held within the highest tier. Ties: the earlier arrival."""
    return min(
        residents, key=lambda s: (-s.request.priority, -s.num_computed, s.seq_id), default=None
    )


def choose_victims(
    residents: list[Sequence],
    gain_alone: Callable[[Sequence], int],
    refs: Callable[[PageId], int],
    order: VictimKey,
) -> list[Sequence]:
    """The next victim, smallest by `order`; or the smallest set of sharers that gains together,
    where nobody gains alone; or nobody. `gain_alone(s)`: pages that parking s alone makes
    available."""
    first = leader(residents)
    able = [s for s in residents if s is not first and s.status in RUNNING]
    gaining = [s for s in able if gain_alone(s) >= 1]
    if gaining:
        return [min(gaining, key=order)]
    return _smallest_gaining_set(sorted(able, key=order), refs)


def _smallest_gaining_set(
    candidates: list[Sequence], refs: Callable[[PageId], int]
) -> list[Sequence]:
    """The fewest candidates that hold some page among themselves alone."""
    holders: dict[PageId, list[Sequence]] = {}
    for seq in candidates:
        for page in seq.table:
            holders.setdefault(page, []).append(seq)
    sets = [group for page, group in holders.items() if len(group) == refs(page)]
    return min(sets, key=len, default=[])
