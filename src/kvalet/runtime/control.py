"""Parking and resuming on request, a slot at a time (SPEC P14)."""

from dataclasses import dataclass

from kvalet.core.plan import SlotId
from kvalet.core.scheduler import Scheduler
from kvalet.errors import Conflict, NotFound
from kvalet.runtime.messages import SlotView
from kvalet.runtime.snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class SlotControl:
    """`request_id`: whose slot it has to be, or have been last if it is idle; None: anybody's.
    Raises NotFound or Conflict."""

    scheduler: Scheduler
    snapshots: Snapshots

    def park(self, slot: int, request_id: str | None, timeout_s: float) -> SlotView:
        found = self._find(slot, request_id)
        self.scheduler.park(found, timeout_s)
        return self.snapshots.slot(found)

    def resume(self, slot: int, request_id: str | None) -> SlotView:
        found = self._find(slot, request_id)
        self.scheduler.resume(found)
        return self.snapshots.slot(found)

    def _find(self, slot: int, request_id: str | None) -> SlotId:
        if not 0 <= slot < len(self.scheduler.slots):
            raise NotFound(f"there is no slot {slot}", "id_slot")
        occupant = self.scheduler.occupant(SlotId(slot))
        found = None if occupant is None else occupant.label
        if request_id is not None and request_id != found:
            raise Conflict(f"slot {slot} is not that of request {request_id}", "id")
        return SlotId(slot)
