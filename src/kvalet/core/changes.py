"""What the scheduler reports: what happened to sequences, and totals."""

from dataclasses import dataclass
from enum import Enum

from kvalet.core.plan import AnyTransfer, Direction, FinishReason, SeqId, Transfer
from kvalet.core.room import Entry
from kvalet.core.sequence import ParkMode


class ChangeKind(Enum):
    WAITING = "waiting"  # stands in the line before its first token; not a park
    PREEMPTED = "preempted"
    RESUMED = "resumed"
    ROTATION_REFUSED = "rotation refused"  # the host budget does not hold two states
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Parked:
    """A park, for the log."""

    mode: ParkMode
    why: str
    num_cells: int
    num_pages: int  # that have to be copied


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a sequence, for whoever talks to its client."""

    seq_id: SeqId
    kind: ChangeKind
    reason: FinishReason | None = None
    message: str = ""
    error: Exception | None = None  # what planning for it raised, for the log
    parked: Parked | None = None


@dataclass(slots=True)
class Counters:
    """Totals since the start; names as in /metrics (behaviour M1)."""

    n_preempt: int = 0
    n_resume: int = 0
    n_preempt_swap: int = 0
    n_preempt_recompute: int = 0
    n_recompute_tokens: int = 0
    n_preempt_fail: int = 0
    pages_out: int = 0  # copied for parks
    pages_in: int = 0
    pages_mirrored: int = 0  # copied ahead
    parked_pages: int = 0  # of sequences parked by copying
    parked_pages_mirrored: int = 0  # of those, in the host store already
    prefix_pages_pool: int = 0  # of new prompts, found in the pool
    prefix_pages_host: int = 0  # found in the host store
    prefix_pages_missed: int = 0  # full, and to be computed
    n_steps_beside_copy: int = 0  # computed while a copy was under way
    n_waits_for_copy: int = 0  # steps in which a sequence got no page, and a copy will free some

    def count_park(self, mode: ParkMode) -> None:
        self.n_preempt += 1
        if mode is ParkMode.RECOMPUTE:
            self.n_preempt_recompute += 1
        else:
            self.n_preempt_swap += 1

    def count_prefix(self, entry: Entry, num_full: int) -> None:
        """A new prompt of `num_full` pages that may be found comes in."""
        self.prefix_pages_pool += entry.num_pool
        self.prefix_pages_host += entry.num_host
        self.prefix_pages_missed += num_full - entry.num_pool - entry.num_host

    def count_parked_pages(self, num_held: int, num_copied: int) -> None:
        self.parked_pages += num_held
        self.parked_pages_mirrored += num_held - num_copied

    def count_copy(self, transfer: AnyTransfer) -> None:
        """One that has landed. State files are not counted: nobody is parked or resumed by them."""
        if not isinstance(transfer, Transfer):
            return
        if transfer.direction is Direction.IN:
            self.pages_in += len(transfer.moves)
        elif transfer.seq_id is None:
            self.pages_mirrored += len(transfer.moves)
        else:
            self.pages_out += len(transfer.moves)
