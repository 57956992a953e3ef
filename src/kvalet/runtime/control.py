"""What is done to a slot on request: parked, resumed, saved, restored, erased (behaviour P14, C3).

For the engine thread: other threads say `Call`. `request_id`, where it is not None, is of the
request that has to have the slot, or to have had it last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kvalet.core.plan import Fault, FaultKind, SlotId, TransferId
from kvalet.core.scheduler import Scheduler
from kvalet.engine.host.statefile import file_bytes
from kvalet.errors import (
    Conflict,
    EngineError,
    KvaletError,
    NotFound,
    StateFileError,
    StateFileGone,
)
from kvalet.runtime.calls import Later
from kvalet.runtime.messages import SlotState, SlotView
from kvalet.runtime.snapshot import Snapshots

_ERRORS: Final[Mapping[FaultKind, Callable[[str], KvaletError]]] = {
    FaultKind.DEVICE: EngineError,
    FaultKind.GONE: StateFileGone,
    FaultKind.REFUSED: StateFileError,
}


@dataclass(frozen=True, slots=True)
class SlotControl:
    """Everything here raises NotFound or Conflict. A file fails with EngineError where the disk
    does, with StateFileError where it is not one to restore."""

    scheduler: Scheduler
    snapshots: Snapshots
    clock: Callable[[], float]

    def park(self, slot: int, request_id: str | None, timeout_s: float) -> SlotView:
        found = self._find(slot, request_id)
        self.scheduler.park(found, timeout_s)
        return self.snapshots.slot(found)

    def resume(self, slot: int, request_id: str | None) -> SlotView:
        found = self._find(slot, request_id)
        self.scheduler.resume(found)
        return self.snapshots.slot(found)

    def save(self, slot: int, request_id: str | None, path: str) -> Later[SlotState]:
        found = self._find(slot, request_id)
        transfer_id, num_tokens = self.scheduler.states.save(found, path)
        return self._later(transfer_id, found, num_tokens)

    def restore(
        self, slot: int, path: str, tokens: tuple[int, ...], timeout_s: float
    ) -> Later[SlotState]:
        found = self._find(slot, None)
        transfer_id = self.scheduler.states.restore(found, path, tokens, timeout_s)
        return self._later(transfer_id, found, len(tokens))

    def erase(self, slot: int, request_id: str | None) -> SlotState:
        found = self._find(slot, request_id)
        return SlotState(slot, self.scheduler.states.erase(found))

    def _later(self, transfer_id: TransferId, slot: SlotId, num_tokens: int) -> Later[SlotState]:
        done = partial(self._done, slot, num_tokens, self.clock())
        return Later(transfer_id, done, _error_of)

    def _done(self, slot: SlotId, num_tokens: int, began: float) -> SlotState:
        num_bytes = file_bytes(num_tokens, self.snapshots.page_bytes)
        return SlotState(slot, num_tokens, num_bytes, self.clock() - began)

    def _find(self, slot: int, request_id: str | None) -> SlotId:
        if not 0 <= slot < len(self.scheduler.slots):
            raise NotFound(f"there is no slot {slot}", "id_slot")
        occupant = self.scheduler.occupant(SlotId(slot))
        found = None if occupant is None else occupant.request.request_id
        if request_id is not None and request_id != found:
            raise Conflict(f"slot {slot} is not that of request {request_id}", "id")
        return SlotId(slot)


def _error_of(fault: Fault) -> KvaletError:
    return _ERRORS[fault.kind](fault.message)
