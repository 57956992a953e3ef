"""Rotation: endless chats take turns (behaviour P10).

A resident that shifts its context never ends and never outgrows the pool, so a head of the line
that does not fit beside it would wait for ever. After a while the resident makes way.
"""

from collections.abc import Callable

from kvalet.core.sequence import RUNNING, Sequence


def choose(
    head: Sequence, residents: list[Sequence], lets_in: Callable[[Sequence], bool]
) -> Sequence | None:
    """Who makes way for `head`: of the residents that shifted since it began to wait, the leader
    included, the smallest whose pages let it in, else the largest. One of a higher tier would be
    let in again first, so it is not asked."""
    able = [
        seq
        for seq in residents
        if seq.status in RUNNING
        and seq.shift_ticket > head.line_ticket
        and seq.request.priority <= head.request.priority
    ]
    enough = [seq for seq in able if lets_in(seq)]
    if enough:
        return min(enough, key=lambda s: (s.num_computed, s.seq_id))
    return max(able, key=lambda s: (s.num_computed, -s.seq_id), default=None)
