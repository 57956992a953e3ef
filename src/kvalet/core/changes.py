"""What the scheduler reports: what happened to sequences, and totals."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from kvalet.core.plan import Direction, FinishReason, SeqId, Transfer
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
    """Totals since the start; names as in /metrics (SPEC M1)."""

    n_preempt: int = 0
    n_resume: int = 0
    n_preempt_swap: int = 0
    n_preempt_recompute: int = 0
    n_recompute_tokens: int = 0
    n_preempt_fail: int = 0
    pages_out: int = 0
    pages_in: int = 0

    def count_park(self, mode: ParkMode) -> None:
        self.n_preempt += 1
        if mode is ParkMode.SWAP:
            self.n_preempt_swap += 1
        else:
            self.n_preempt_recompute += 1

    def count_copies(self, transfers: Iterable[Transfer]) -> None:
        for transfer in transfers:
            if transfer.direction is Direction.OUT:
                self.pages_out += len(transfer.moves)
            else:
                self.pages_in += len(transfer.moves)
