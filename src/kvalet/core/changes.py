"""What the scheduler reports: what happened to sequences, and totals."""

from dataclasses import dataclass
from enum import Enum

from kvalet.core.plan import FinishReason, SeqId


class ChangeKind(Enum):
    PREEMPTED = "preempted"
    RESUMED = "resumed"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a sequence, for whoever talks to its client."""

    seq_id: SeqId
    kind: ChangeKind
    reason: FinishReason | None = None
    message: str = ""


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
