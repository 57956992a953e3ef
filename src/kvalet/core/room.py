"""The arithmetic of room, in pages, defined once and used by every gate (behaviour P1).

Plain functions over sequences. *need*: pages a sequence opens in the coming step. *committed*:
pages its known tokens will still take after that step. *lookahead*: pages it opens in the steps
after. A `Pace` says how fast sequences go.
"""

from dataclasses import dataclass

from kvalet.core.plan import PAGE_CELLS, pages_for
from kvalet.core.sequence import RUNNING, Sequence


@dataclass(frozen=True, slots=True)
class Pace:
    chunk: int  # tokens of prefill or replay a sequence computes a step
    lookahead_steps: int
    n_ctx: int
    replay_margin: int = 0  # steps after a replay that there must be room for, to begin it


def cells_after(seq: Sequence, steps: int, pace: Pace) -> int:
    """Cells `seq` covers after its next `steps` steps."""
    computed = min(seq.num_pending, steps * pace.chunk)
    if computed < seq.num_pending:
        return seq.num_computed + computed
    steps_left = steps - -(-seq.num_pending // pace.chunk)
    return _grown(seq, steps_left, pace)


def _grown(seq: Sequence, num_tokens: int, pace: Pace) -> int:
    """Cells after generating `num_tokens` more, or as many as it may; at most n_ctx."""
    grown = len(seq.tokens) + min(num_tokens, max(0, seq.num_left(pace.n_ctx)))
    return min(grown, max(pace.n_ctx, len(seq.tokens)))


def need(seq: Sequence, pace: Pace) -> int:
    if seq.status not in RUNNING:
        return 0
    return pages_for(cells_after(seq, 1, pace)) - len(seq.table) + seq.num_to_copy


def committed(seq: Sequence, pace: Pace) -> int:
    return max(0, pages_for(len(seq.tokens)) - len(seq.table) - need(seq, pace))


def lookahead(seq: Sequence, pace: Pace) -> int:
    """Pages opened in the steps after the coming one."""
    first = 1 if seq.status in RUNNING else 0
    ahead = cells_after(seq, first + pace.lookahead_steps, pace)
    return pages_for(ahead) - pages_for(cells_after(seq, first, pace))


def lookahead_once_computed(seq: Sequence, steps: int, pace: Pace) -> int:
    """Pages opened in the `steps` steps after all known tokens are computed; what comes before is
    `need` and `committed`."""
    return pages_for(_grown(seq, steps, pace)) - pages_for(len(seq.tokens))


def shortage(residents: list[Sequence], clear: int, leaving: int, pace: Pace) -> int:
    """Pages by which the residents' need and lookahead exceed what is or will be clear; <= 0: none.

    `leaving`: pages that sequences being parked will give back. A lone resident looks no further
    than the coming step: nobody could be parked for it."""
    wanted = sum(need(seq, pace) for seq in residents)
    if len(residents) > 1:
        wanted += sum(lookahead(seq, pace) for seq in residents)
    return wanted - clear - leaving


@dataclass(frozen=True, slots=True)
class Entry:
    """What bringing a sequence into the pool takes: all pages of its known tokens."""

    fresh: int  # clear pages used up, cached ones found by name included (clear until taken)
    num_to_compute: int  # known tokens that are neither found by name nor in the host store
    is_resume: bool
    num_to_replay: int = 0  # of those, that were computed before
    num_pool: int = 0  # pages found in the pool
    num_host: int = 0  # pages found in the host store


def can_enter(
    seq: Sequence, entry: Entry, residents: list[Sequence], clear: int, pace: Pace
) -> bool:
    """The entry gate, for first admission and resume alike. The lookahead is waived for one that
    would be alone."""
    wanted = entry.fresh + sum(need(s, pace) + committed(s, pace) for s in residents)
    if residents:
        steps = _steps_ahead(entry, pace)
        wanted += sum(lookahead_once_computed(s, steps, pace) for s in [*residents, seq])
    return wanted <= clear


def _steps_ahead(entry: Entry, pace: Pace) -> int:
    """A replay is spanned, during which the others go on growing, and, if it is of more than a last
    page, a margin after it: whoever is parked soon afterwards has computed again for nothing."""
    if not entry.is_resume:
        return pace.lookahead_steps
    steps = max(pace.lookahead_steps, -(-entry.num_to_compute // pace.chunk))
    return steps + pace.replay_margin if entry.num_to_replay >= PAGE_CELLS else steps
