"""Decides, once per step, who computes what: `plan(now)`, then `commit(plan, outcome)`.

Pure: it never calls the engine, reads no clock, and the same calls give the same plans. State
changes in `commit`, and in `plan` only for what the plan itself says. The order of a plan: slots,
parks, the line, rotation, context shifts, grants.
"""

from collections.abc import Callable, Collection, Iterator

from kvalet.core.batcher import Batcher
from kvalet.core.changes import Change, ChangeKind, Counters
from kvalet.core.config import SchedulerConfig
from kvalet.core.guard import Guard
from kvalet.core.keeping import Keeping
from kvalet.core.mirroring import Mirroring
from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import (
    PAGE_CELLS,
    AnyTransfer,
    FinishReason,
    Grant,
    Sampled,
    SeqId,
    SlotId,
    StepOutcome,
    StepPlan,
    TransferId,
    pages_for,
)
from kvalet.core.preemption import Preemption
from kvalet.core.sequence import RUNNING, Move, Sequence, Status
from kvalet.core.shifting import Shifting
from kvalet.core.slots import Slots
from kvalet.core.states import States
from kvalet.core.store import HostPage, HostStore
from kvalet.core.transfers import Transfers
from kvalet.errors import Conflict, InvariantViolation

CONTEXT_EXCEEDED = "Context size has been exceeded."
RESTORE_FAILED = "failed to restore the preempted sequence"
RESTORE_PATIENCE_S = 60.0


class Scheduler:
    def __init__(self, config: SchedulerConfig, num_pages: int, root: bytes) -> None:
        self.config = config
        self.pool = PagePool(num_pages)
        self.store = HostStore(config.host_budget)
        self.counters = Counters()
        self._changes: list[Change] = []
        self._slots = Slots(config.slots.num_slots, config.slots.max_queue)
        self._transfers = Transfers(self.pool, self.store)
        self._parking = Parking(self.pool, self.store, self._transfers, root)
        self._keeping = Keeping(self.pool, self.store, self._transfers, self._parking)
        self._guard = Guard(self._taking_part, self._fail_planning)
        self._shifting = Shifting(
            config.n_ctx, self._slots, self.pool, self._transfers, self._guard
        )
        self._batcher = Batcher(config, self.pool, self._parking, self._guard)
        self._preemption = Preemption(
            config,
            self._slots,
            self.pool,
            self._transfers,
            self._parking,
            self._batcher,
            self._guard,
            self.counters,
            self._changes,
        )
        self._mirroring = Mirroring(
            self._slots,
            self.pool,
            self.store,
            self._transfers,
            self._parking,
            self._preemption.victim_key,
        )
        self.states = States(
            self._slots, self.pool, self.store, self._transfers, self._parking, self._keeping
        )
        self._is_mirroring = config.mirror
        self._mirroring_fault: Exception | None = None  # what ended it
        self._step = 0

    @property
    def slots(self) -> tuple[Sequence | None, ...]:
        return self._slots.held

    @property
    def num_queued(self) -> int:
        return self._slots.num_queued

    @property
    def has_work(self) -> bool:
        is_copying = self._transfers.is_in_flight or self.store.has_freed
        is_due = self._is_mirroring and self._mirroring.is_due
        return is_copying or is_due or not self._slots.is_empty

    @property
    def is_in_flight(self) -> bool:
        """Whether a copy is under way."""
        return self._transfers.is_in_flight

    @property
    def kept_slots(self) -> Collection[SlotId]:
        """Idle slots whose last request's pages are parked."""
        return self._keeping.slots

    def kept_pages(self, slot: SlotId) -> tuple[HostPage, ...]:
        """What the host store keeps for an idle slot, in position order."""
        return self._keeping.pages(slot)

    def occupant(self, slot: SlotId) -> Sequence | None:
        """Who is in `slot`, or was in it last."""
        return self.slots[slot] or self._slots.last(slot)

    def num_in_host(self, seq: Sequence) -> int:
        """Pages of a live sequence's that the host store holds."""
        return self._parking.num_in_host(seq)

    def take_mirroring_fault(self) -> Exception | None:
        """Why there are no more copies ahead, told once."""
        fault, self._mirroring_fault = self._mirroring_fault, None
        return fault

    def take_changes(self) -> list[Change]:
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def add(self, *family: Sequence) -> None:
        """Queue the sequences of a new request, one behind the other, all or none. Raises
        RequestError, ContextExceeded or Overloaded."""
        for seq in family:
            self.config.validate(seq.request.prompt, seq.request.id_slot)
            seq.is_endless = self.config.shift.context_shift
        self._slots.add(family)

    def cancel(self, seq_id: SeqId) -> None:
        """End a sequence in whatever state, or none of that id (behaviour P16)."""
        for seq in self._slots.everybody():
            if seq.seq_id == seq_id:
                self._end(seq)
                return

    def plan(self, now: float) -> StepPlan:
        """The next step. `now`: seconds of a monotonic clock."""
        was_in_flight = self._transfers.is_in_flight
        self._slots.fill()
        self._keeping.forget_used(now)
        self._shifting.charge()
        self._give_up_restores(now)
        with self._guard():
            self._preemption.run(now)
            self._fail_hopeless()
        shifts, copies = self._shifting.run(self._preemption.next_ticket())
        grants = tuple(self._grants())
        self._copy_ahead()
        self._step += 1
        transfers = self._transfers.take_started()
        self.counters.n_steps_beside_copy += was_in_flight and bool(grants)
        sources = [copy.src for copy in copies]
        # Given up by its last holder in the step that copies it, a page is still read.
        freed = tuple(page for page in self.pool.take_freed() if page not in sources)
        host_freed = self.store.take_freed()
        return StepPlan(
            self._step,
            freed=freed,
            host_freed=host_freed,
            page_copies=tuple(copies),
            page_shifts=tuple(shifts),
            grants=grants,
            transfers=transfers,
        )

    def park(self, slot: SlotId, timeout_s: float) -> None:
        """Park what runs in `slot` or what was left in it (behaviour P14). Raises Conflict."""
        seq = self.occupant(slot)
        if seq is None:
            raise Conflict(f"slot {slot} is idle and has nothing to park")
        if seq.status is Status.ENDED:
            self._keeping.keep(slot, seq, timeout_s)
        else:
            self._preemption.hold(seq, timeout_s)

    def resume(self, slot: SlotId) -> None:
        """Undo `park`: back into the line, or back into the pool. Raises Conflict."""
        seq = self.slots[slot]
        if seq is not None:
            self._preemption.release(seq)
        else:
            self._keeping.bring_back(slot)

    def _give_up_restores(self, now: float) -> None:
        """One that can neither be restored nor replayed ends after a while (behaviour P17)."""
        for seq in self._active(Status.PREEMPTED):
            with self._guard(seq):
                if seq.can_replay or not self._parking.is_failing(seq):
                    seq.failing_since = None
                elif seq.failing_since is None:
                    seq.failing_since = now
                elif now - seq.failing_since >= RESTORE_PATIENCE_S:
                    self._fail(seq, RESTORE_FAILED)

    def _fail_hopeless(self) -> None:
        """Guard: not even the empty pool holds the head; never happens (behaviour S5, P9)."""
        if any(change.kind is ChangeKind.FAILED for change in self._changes):
            return  # it has had no chance yet at what that one gave back
        head = self._preemption.head()
        is_empty = not self.is_in_flight and not any(s.is_resident for s in self._active())
        if head is not None and is_empty and self._parking.can_restore(head):
            self._fail(head, CONTEXT_EXCEEDED)

    def _grants(self) -> Iterator[Grant]:
        """What every resident computes; without preemption, one that gets no page ends here."""
        able = [seq for seq in self._active() if not self._shifting.is_due(seq)]
        is_waiting = False
        for seq, grant in self._batcher.grants(able):
            if grant is not None:
                yield grant
            elif self._transfers.num_leaving(self._active()):
                is_waiting = True
            elif not self.config.preemption.preempt:
                self._fail(seq, CONTEXT_EXCEEDED)
        self.counters.n_waits_for_copy += is_waiting

    def _copy_ahead(self) -> None:
        """A fault of what nobody asked for ends nobody: there are no more copies ahead."""
        if not self._is_mirroring:
            return
        try:
            self._mirroring.run()
        except InvariantViolation:
            raise
        except Exception as error:
            self._is_mirroring = False
            self._mirroring_fault = error

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Take in what came of `plan`; the only place where computed tokens count."""
        self._batcher.pacing.observe(plan, outcome.compute_s)
        by_id = {seq.seq_id: seq for seq in self._active()}
        for grant in plan.grants:
            self._commit_grant(by_id[grant.seq_id], grant, outcome)
        for transfer_id in outcome.landed:
            self._end_copy(transfer_id, self._transfers.land)
        for transfer_id in outcome.failed_transfers:
            self.counters.n_preempt_fail += self._transfers.whose(transfer_id) is not None
            self._end_copy(transfer_id, self._transfers.fail)

    def _end_copy(self, transfer_id: TransferId, end: Callable[[TransferId], AnyTransfer]) -> None:
        seq = self._transfers.whose(transfer_id)
        was_leaving = seq is not None and seq.status is Status.PREEMPTING
        transfer = end(transfer_id)
        if end == self._transfers.land:
            self.counters.count_copy(transfer)
        if seq is None:
            return
        if was_leaving and seq.status is Status.DECODE:  # its pages did not get out; it goes on
            self._preemption.note_return(seq)
        else:
            self._preemption.announce_resumed(seq)

    def _commit_grant(self, seq: Sequence, grant: Grant, outcome: StepOutcome) -> None:
        if seq.seq_id in outcome.failed:
            self._fail(seq, outcome.failed[seq.seq_id])
        elif seq.seq_id in outcome.not_run:
            self._return_grant(seq)
        else:
            self._count_computed(seq, grant)
            for sampled in outcome.sampled.get(seq.seq_id, ()):
                self._append(seq, sampled, outcome.finished.get(seq.seq_id))

    def _return_grant(self, seq: Sequence) -> None:
        self._preemption.note_shortage()
        while len(seq.table) > pages_for(seq.num_computed):
            self.pool.release(seq.table.pop())

    def _count_computed(self, seq: Sequence, grant: Grant) -> None:
        end = grant.start + len(grant.tokens)
        replayed = max(0, min(end, seq.replay_until) - grant.start)
        seq.num_recomputed += replayed
        self.counters.n_recompute_tokens += replayed
        seq.num_computed = end
        for index in range(grant.start // PAGE_CELLS, end // PAGE_CELLS):
            self._parking.publish(seq, index)
        if seq.status is not Status.DECODE and grant.draws:
            seq.move(Move.COMPUTED)
        elif seq.status is Status.REPLAY and end >= seq.replay_until:
            seq.move(Move.COMPUTED if seq.num_generated else Move.TO_PREFILL)
        self._preemption.announce_resumed(seq)

    def _append(self, seq: Sequence, sampled: Sampled, judged: FinishReason | None) -> None:
        seq.tokens.append(sampled.token)
        limit = seq.request.max_new_tokens
        if judged is not None:
            self._finish(seq, judged)
        elif limit is not None and seq.num_generated >= limit:
            self._finish(seq, FinishReason.LENGTH)
        elif len(seq.tokens) >= self.config.n_ctx and not seq.is_endless:
            self._finish(seq, FinishReason.CONTEXT)

    def _finish(self, seq: Sequence, reason: FinishReason) -> None:
        seq.finish_reason = reason
        self._end(seq)
        self._changes.append(Change(seq.seq_id, ChangeKind.FINISHED, reason))

    def _taking_part(self) -> list[Sequence]:
        """Who computes; where nobody does, whoever has a slot."""
        return self._active(*RUNNING) or self._active()

    def _fail_planning(self, seq: Sequence, error: Exception) -> None:
        self._fail(seq, f"planning failed: {type(error).__name__}: {error}", error)

    def _fail(self, seq: Sequence, message: str, error: Exception | None = None) -> None:
        self._end(seq)
        self._changes.append(Change(seq.seq_id, ChangeKind.FAILED, message=message, error=error))

    def _end(self, seq: Sequence) -> None:
        seq.move(Move.END)
        self._parking.end(seq)
        self._slots.leave(seq)

    def _active(self, *statuses: Status) -> list[Sequence]:
        return self._slots.active(*statuses)

    def check(self) -> None:
        """Raise InvariantViolation unless what is held adds up (behaviour S3)."""
        for seq in self._active():
            holds = seq.is_resident or seq.status is Status.PREEMPTING
            if len(seq.table) != (pages_for(seq.num_computed) if holds else 0):
                raise InvariantViolation(
                    f"sequence {seq.seq_id} ({seq.status.value}) holds {len(seq.table)} pages "
                    f"for {seq.num_computed} computed tokens"
                )
        self.pool.check([*(seq.table for seq in self._active()), *self._transfers.holdings()])
        pinned = [*self._parking.pins(), *self._keeping.pins()]
        self.store.check(pinned, self._transfers.busy())
