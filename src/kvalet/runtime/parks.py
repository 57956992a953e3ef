"""The operator's account of preemption: a log line for each park and each resume (behaviour M3).

A park's line is written once its copy is done, and says how long that took; a resume's when the
sequence takes part again, and says how long it was away. Nothing is logged per step or token.
"""

import logging
from dataclasses import dataclass

from kvalet.core.changes import Change, ChangeKind, Parked
from kvalet.core.plan import Direction, SeqId, StepPlan, Transfer
from kvalet.core.sequence import Sequence, Status
from kvalet.runtime.metrics import Buckets

logger = logging.getLogger("kvalet.preempt")


@dataclass(slots=True)
class _Absence:
    seq: Sequence
    parked: Parked
    began: float  # seconds
    num_pages_in: int = 0  # copied back


class ParkLog:
    def __init__(self, page_bytes: int, parked_s: Buckets) -> None:
        """`parked_s`: where the lengths of absences are counted."""
        self._page_bytes = page_bytes
        self._parked_s = parked_s
        self._leaving: list[_Absence] = []  # their lines are not written yet
        self._absent: dict[SeqId, _Absence] = {}

    def begin(self, plan: StepPlan) -> None:
        """What a step copies back."""
        for copy in plan.transfers:
            if isinstance(copy, Transfer) and copy.direction is Direction.IN:
                absence = None if copy.seq_id is None else self._absent.get(copy.seq_id)
                if absence is not None:
                    absence.num_pages_in = len(copy.moves)

    def note(self, change: Change, seq: Sequence, pause_s: float, now: float) -> None:
        """`pause_s`: how long `seq` was away last."""
        if change.parked is not None:
            self._absent[seq.seq_id] = _Absence(seq, change.parked, now)
            self._leaving.append(self._absent[seq.seq_id])
            self.settle(now)
        elif change.kind is ChangeKind.RESUMED and seq.seq_id in self._absent:
            self._resumed(self._absent.pop(seq.seq_id), pause_s)
        elif change.kind is ChangeKind.ROTATION_REFUSED:
            text = "rotation refused: slot=%s request=%s: the host budget does not hold both states"
            logger.warning(text, seq.slot, seq.request.request_id)

    def settle(self, now: float) -> None:
        """Write the lines of parks whose copies are done."""
        done = [a for a in self._leaving if a.seq.status is not Status.PREEMPTING]
        for absence in done:
            self._leaving.remove(absence)
            num_pages = absence.parked.num_pages
            logger.info("park: %s", self._line(absence, num_pages, now - absence.began))

    def forget(self, seq_id: SeqId) -> None:
        """The sequence is over."""
        self._absent.pop(seq_id, None)

    def _resumed(self, absence: _Absence, pause_s: float) -> None:
        self._parked_s.observe(pause_s)
        logger.info("resume: %s", self._line(absence, absence.num_pages_in, pause_s))

    def _line(self, absence: _Absence, num_pages: int, seconds: float) -> str:
        seq, parked = absence.seq, absence.parked
        return (
            f"slot={seq.slot} request={seq.request.request_id} cells={parked.num_cells} "
            f"bytes={num_pages * self._page_bytes} mode={parked.mode.value} "
            f"ms={seconds * 1e3:.1f} why={parked.why!r}"
        )
