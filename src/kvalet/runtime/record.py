"""A line about every step, for `kvalet simulate --calibrate`, which defines the format.

Lines are added to a file through a buffer, so that one costs the engine thread microseconds. A disk
that is full ends the record, not the server.
"""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Final

from kvalet.core.plan import Direction, StepOutcome, StepPlan, Transfer, TransferId
from kvalet.core.work import work_of
from kvalet.errors import ConfigError

logger = logging.getLogger(__name__)

BUFFER_BYTES: Final = 1 << 16  # some 300 lines


class StepRecorder:
    """Belongs to the engine thread once the loop has it."""

    def __init__(self, path: Path, *, page_bytes: int, is_async: bool) -> None:
        """`is_async`: copies run beside steps, else within them. Raises ConfigError if the file
        cannot be written."""
        try:
            self._file = path.open("a", buffering=BUFFER_BYTES, encoding="ascii")
        except OSError as error:
            raise ConfigError(f"LLAMA_SERVER_RECORD: {path}: {error.strerror}") from None
        self._page_bytes = page_bytes
        self._is_async = is_async
        self._is_broken = False
        self._in_flight: dict[TransferId, Transfer] = {}
        self._idle_copy_s = 0.0  # since the last line
        self._landed = dict.fromkeys(Direction, 0)  # pages, likewise

    def add(self, plan: StepPlan, outcome: StepOutcome, seconds: float) -> None:
        """A step that took `seconds` from planning to delivery. One without rows has no line of its
        own: what was copied meanwhile is told with the next that has."""
        if self._is_broken:
            return
        self._count_landed(plan, outcome)
        if not plan.grants:
            self._idle_copy_s += outcome.copy_s
            return
        self._write(
            {
                "sequences": len(plan.grants),
                **asdict(work_of(plan)),
                "compute_s": outcome.compute_s,
                "step_s": seconds,
                "pages_out": self._landed[Direction.OUT],
                "pages_in": self._landed[Direction.IN],
                "copy_s": outcome.copy_s,
                "idle_copy_s": self._idle_copy_s,
                "is_async": self._is_async,
                "page_bytes": self._page_bytes,
            }
        )
        self._idle_copy_s = 0.0
        self._landed = dict.fromkeys(Direction, 0)

    def close(self) -> None:
        """Write what is buffered. Safe to call twice."""
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def _count_landed(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """State files are left out: they cost what a disk costs."""
        for transfer in plan.transfers:
            if isinstance(transfer, Transfer):
                self._in_flight[transfer.transfer_id] = transfer
        for transfer_id in outcome.landed:
            if landed := self._in_flight.pop(transfer_id, None):
                self._landed[landed.direction] += len(landed.moves)
        for transfer_id in outcome.failed_transfers:
            self._in_flight.pop(transfer_id, None)

    def _write(self, line: dict[str, float]) -> None:
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not self._is_broken:
            logger.error("the record of steps ends here: %s", error)
        self._is_broken = True
