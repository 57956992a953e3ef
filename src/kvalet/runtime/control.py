"""Slots on request: parked, resumed, saved, restored, erased (behaviour P14, C3)."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from kvalet.core.plan import SlotId, StepOutcome, TransferId
from kvalet.core.scheduler import Scheduler
from kvalet.engine.host.statefile import file_bytes
from kvalet.errors import Conflict, EngineError, NotFound, RequestError, StateFileError
from kvalet.runtime.inbox import Erase, Park, Restore, Resume, Save, SlotOrder, give, refuse
from kvalet.runtime.messages import SlotState, SlotView
from kvalet.runtime.snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class _FileWork:
    """A state file that is being written or read."""

    slot: SlotId
    num_tokens: int
    began: float  # seconds
    answer: Future[SlotState]
    failure: type[StateFileError] | type[EngineError]  # which error it is if it fails


@dataclass(frozen=True, slots=True)
class SlotControl:
    """`request_id` of an order: whose slot it has to be, or have been last if it is idle; None:
    anybody's. Orders fail with NotFound, Conflict, or for a file: StateFileError if it cannot be
    restored, EngineError if it cannot be written."""

    scheduler: Scheduler
    snapshots: Snapshots
    clock: Callable[[], float]
    _file_work: dict[TransferId, _FileWork] = field(default_factory=dict[TransferId, _FileWork])

    def obey(self, order: SlotOrder) -> None:
        match order:
            case Park(slot, request_id, timeout_s, seen):
                give(seen, lambda: self.park(slot, request_id, timeout_s))
            case Resume(slot, request_id, seen):
                give(seen, lambda: self.resume(slot, request_id))
            case Erase(slot, request_id, answer):
                give(answer, lambda: self.erase(slot, request_id))
            case Save():
                self._begin(order, lambda: self._save(order))
            case Restore():
                self._begin(order, lambda: self._restore(order))

    def park(self, slot: int, request_id: str | None, timeout_s: float) -> SlotView:
        found = self._find(slot, request_id)
        self.scheduler.park(found, timeout_s)
        return self.snapshots.slot(found)

    def resume(self, slot: int, request_id: str | None) -> SlotView:
        found = self._find(slot, request_id)
        self.scheduler.resume(found)
        return self.snapshots.slot(found)

    def erase(self, slot: int, request_id: str | None) -> SlotState:
        return SlotState(slot, self.scheduler.states.erase(self._find(slot, request_id)))

    def settle(self, outcome: StepOutcome) -> None:
        """Answer for the files whose writing or reading is over."""
        if not self._file_work:
            return
        for transfer_id in outcome.landed:
            if work := self._file_work.pop(transfer_id, None):
                give(work.answer, partial(self._done, work))
        for transfer_id, message in outcome.failed_transfers.items():
            if work := self._file_work.pop(transfer_id, None):
                refuse(work.answer, work.failure(message))

    def refuse_all(self, error: Exception) -> None:
        for work in self._file_work.values():
            refuse(work.answer, error)
        self._file_work.clear()

    def _begin(
        self, order: Save | Restore, start: Callable[[], tuple[SlotId, TransferId, int]]
    ) -> None:
        try:
            slot, transfer_id, num_tokens = start()
        except Exception as error:
            refuse(order.answer, error)
            if not isinstance(error, RequestError):
                raise
            return
        failure = StateFileError if isinstance(order, Restore) else EngineError
        work = _FileWork(slot, num_tokens, self.clock(), order.answer, failure)
        self._file_work[transfer_id] = work

    def _save(self, order: Save) -> tuple[SlotId, TransferId, int]:
        slot = self._find(order.slot, order.request_id)
        transfer_id, num_tokens = self.scheduler.states.save(slot, order.path)
        return slot, transfer_id, num_tokens

    def _restore(self, order: Restore) -> tuple[SlotId, TransferId, int]:
        slot = self._find(order.slot, None)
        transfer_id = self.scheduler.states.restore(slot, order.path, order.tokens, order.timeout_s)
        return slot, transfer_id, len(order.tokens)

    def _done(self, work: _FileWork) -> SlotState:
        num_bytes = file_bytes(work.num_tokens, self.snapshots.page_bytes)
        return SlotState(work.slot, work.num_tokens, num_bytes, self.clock() - work.began)

    def _find(self, slot: int, request_id: str | None) -> SlotId:
        if not 0 <= slot < len(self.scheduler.slots):
            raise NotFound(f"there is no slot {slot}", "id_slot")
        occupant = self.scheduler.occupant(SlotId(slot))
        found = None if occupant is None else occupant.request.request_id
        if request_id is not None and request_id != found:
            raise Conflict(f"slot {slot} is not that of request {request_id}", "id")
        return SlotId(slot)
