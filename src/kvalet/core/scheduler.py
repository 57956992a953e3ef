"""Decides, once per step, who computes what: `plan(now)`, then `commit(plan, outcome)`.

Pure: it never calls the engine, reads no clock, and the same calls give the same plans. State
changes in `commit`, and in `plan` only for what the plan itself says (pages granted, copies
started). The order of a plan: slots, forced parks, relief of pressure, the line, grants.
"""

from collections import deque
from collections.abc import Iterator

from kvalet.core import policy, room
from kvalet.core.batcher import Batcher
from kvalet.core.changes import Change, ChangeKind, Counters
from kvalet.core.config import SchedulerConfig
from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import (
    PAGE_CELLS,
    FinishReason,
    Grant,
    Sampled,
    SeqId,
    SlotId,
    StepOutcome,
    StepPlan,
    Transfer,
    pages_for,
)
from kvalet.core.sequence import WAITING, Move, Sequence, Status
from kvalet.core.store import HostStore
from kvalet.errors import ContextExceeded, InvariantViolation, Overloaded, RequestError

CONTEXT_EXCEEDED = "Context size has been exceeded."


class Scheduler:
    def __init__(self, config: SchedulerConfig, num_pages: int, root: bytes) -> None:
        self.config = config
        self.pool = PagePool(num_pages)
        self.store = HostStore(config.host_budget_pages)
        self.counters = Counters()
        self._parking = Parking(self.pool, self.store, root)
        self._batcher = Batcher(config, self.pool, self._parking)
        self._policy = policy.VICTIM_POLICIES[config.victim_policy]
        self._slots: list[Sequence | None] = [None] * config.num_slots
        self._slot_last_used = [0] * config.num_slots
        self._queue: deque[Sequence] = deque()
        self._changes: list[Change] = []
        self._step = 0
        self._next_ticket = 0
        self._is_short = False  # the engine left somebody out for lack of room

    @property
    def slots(self) -> tuple[Sequence | None, ...]:
        return tuple(self._slots)

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def has_work(self) -> bool:
        return bool(self._queue) or self._parking.is_in_flight or any(self._slots)

    def take_changes(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Raises RequestError, ContextExceeded or Overloaded."""
        if not seq.prompt:
            raise RequestError("the prompt has no tokens", "prompt")
        if seq.num_prompt >= self.config.n_ctx:
            raise ContextExceeded(seq.num_prompt, self.config.n_ctx)
        if seq.id_slot is not None and not 0 <= seq.id_slot < self.config.num_slots:
            raise RequestError(f"there is no slot {seq.id_slot}", "id_slot")
        self._queue.append(seq)
        self._fill_slots()
        if len(self._queue) > self.config.max_queue:
            self._queue.pop()
            raise Overloaded(f"{self.config.max_queue} requests are waiting already")

    def cancel(self, seq_id: SeqId) -> None:
        """End a sequence in whatever state, or none of that id (SPEC P16)."""
        for seq in [*self._active(), *self._queue]:
            if seq.seq_id == seq_id:
                self._end(seq)
                return

    def plan(self, now: float) -> StepPlan:
        """The next step. `now`: seconds of a monotonic clock."""
        self._fill_slots()
        transfers = [*self._park_forced(), *self._relieve(), *self._enter()]
        grants = self._batcher.grants(self._active())
        self._step += 1
        return StepPlan(
            step=self._step,
            freed=self.pool.take_freed(),
            grants=tuple(grants),
            transfers=tuple(transfers),
        )

    def _fill_slots(self) -> None:
        """Requests take the slot they are pinned to, or the least recently used free one."""
        for seq in list(self._queue):
            slot = self._free_slot(seq.id_slot)
            if slot is not None:
                self._queue.remove(seq)
                self._slots[slot] = seq
                seq.slot = slot
                seq.move(Move.START)
                self._join_line(seq)

    def _free_slot(self, wanted: int | None) -> SlotId | None:
        free = [
            SlotId(i) for i, held in enumerate(self._slots) if held is None and wanted in (None, i)
        ]
        return min(free, key=lambda i: (self._slot_last_used[i], i), default=None)

    def _park_forced(self) -> Iterator[Transfer]:
        """The test knob of SPEC P13: everybody, the leader and a lone one too."""
        every = self.config.preempt_every
        for seq in self._active(Status.DECODE):
            if every and seq.num_generated % every == 0 and seq.forced_at != seq.num_generated:
                seq.forced_at = seq.num_generated
                self._parking.forget_private_names(seq)
                yield from self._park(seq)

    def _relieve(self) -> Iterator[Transfer]:
        """Park until the residents' next steps fit (SPEC P1, P2)."""
        while self._is_pressed():
            victims = policy.choose_victims(
                self._residents(),
                self._gain,
                self.pool.refs,
                self._policy,
                self.config.starved_after,
            )
            if not victims:
                break
            for seq in victims:
                yield from self._park(seq)

    def _is_pressed(self) -> bool:
        residents = self._residents()
        pace = self._batcher.pace(self._active())
        leaving = self._parking.num_leaving(self._active())
        if self._is_short:
            self._is_short = False
            return leaving == 0
        if self.config.planner:
            return room.shortage(residents, self.pool.num_clear, leaving, pace) > 0
        wanted = sum(room.need(seq, pace) for seq in residents)
        return wanted > self.pool.num_clear + leaving

    def _gain(self, seq: Sequence) -> int:
        alone = sum(self.pool.refs(page) == 1 for page in seq.table)
        return alone + room.need(seq, self._batcher.pace(self._active()))

    def _park(self, seq: Sequence) -> Iterator[Transfer]:
        self.counters.n_preempt += 1
        seq.num_preempts += 1
        self._join_line(seq)
        if not seq.is_announced:
            seq.is_announced = True
            self._changes.append(Change(seq.seq_id, ChangeKind.PREEMPTED))
        if not self._parking.can_swap(seq):
            self.counters.n_preempt_recompute += 1
            self._parking.drop(seq)
            return
        self.counters.n_preempt_swap += 1
        transfer = self._parking.swap_out(seq)
        if transfer is not None:
            self.counters.pages_out += len(transfer.moves)
            yield transfer

    def _enter(self) -> Iterator[Transfer]:
        """The line, strictly: nobody passes a head that does not fit (SPEC S7, P8)."""
        for seq in sorted(self._active(*WAITING), key=lambda s: (-s.priority, s.line_ticket)):
            if seq.status is Status.PREEMPTING or not self._fits(seq):
                return
            if seq.status is Status.STARTED:
                self._parking.admit(seq)
                continue
            self.counters.n_resume += 1
            transfer = self._parking.resume(seq)
            if transfer is not None:
                self.counters.pages_in += len(transfer.moves)
                yield transfer
            self._announce_resumed(seq)

    def _fits(self, seq: Sequence) -> bool:
        entry = self._parking.entry(seq)
        residents = self._residents()
        pace = self._batcher.pace(self._active(), joining=True)
        if room.can_enter(seq, entry, residents, self.pool.num_clear, pace):
            return True
        if not residents and not self._parking.is_in_flight:
            self._fail(seq, CONTEXT_EXCEEDED)  # SPEC P9's guard: not even the empty pool holds it
        return False

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Take in what came of `plan`; the only place where computed tokens count."""
        by_id = {seq.seq_id: seq for seq in self._active()}
        for grant in plan.grants:
            self._commit_grant(by_id[grant.seq_id], grant, outcome)
        for transfer_id in outcome.landed:
            self._announce_resumed(self._parking.land(transfer_id))
        for transfer_id in outcome.failed_transfers:
            self.counters.n_preempt_fail += 1
            self._parking.fail(transfer_id)

    def _commit_grant(self, seq: Sequence, grant: Grant, outcome: StepOutcome) -> None:
        if seq.seq_id in outcome.failed:
            self._fail(seq, outcome.failed[seq.seq_id])
        elif seq.seq_id in outcome.not_run:
            self._return_grant(seq)
        else:
            self._count_computed(seq, grant)
            sampled = outcome.sampled.get(seq.seq_id)
            if sampled is not None:
                self._append(seq, sampled, outcome.finished.get(seq.seq_id))

    def _return_grant(self, seq: Sequence) -> None:
        self._is_short = True
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
        if seq.status is not Status.DECODE and grant.draw is not None:
            seq.move(Move.COMPUTED)
        elif seq.status is Status.REPLAY and end >= seq.replay_until and not seq.num_generated:
            seq.move(Move.TO_PREFILL)
        self._announce_resumed(seq)

    def _append(self, seq: Sequence, sampled: Sampled, judged: FinishReason | None) -> None:
        seq.tokens.append(sampled.token)
        if judged is not None:
            self._finish(seq, judged)
        elif seq.max_new_tokens is not None and seq.num_generated >= seq.max_new_tokens:
            self._finish(seq, FinishReason.LENGTH)
        elif len(seq.tokens) >= self.config.n_ctx:
            self._finish(seq, FinishReason.CONTEXT)

    def _announce_resumed(self, seq: Sequence) -> None:
        if seq.is_announced and seq.status in (Status.PREFILL, Status.DECODE):
            seq.is_announced = False
            self._changes.append(Change(seq.seq_id, ChangeKind.RESUMED))

    def _finish(self, seq: Sequence, reason: FinishReason) -> None:
        seq.finish_reason = reason
        self._end(seq)
        self._changes.append(Change(seq.seq_id, ChangeKind.FINISHED, reason))

    def _fail(self, seq: Sequence, message: str) -> None:
        self._end(seq)
        self._changes.append(Change(seq.seq_id, ChangeKind.FAILED, message=message))

    def _end(self, seq: Sequence) -> None:
        seq.move(Move.END)
        self._parking.end(seq)
        if seq.slot is None:
            self._queue.remove(seq)
        else:
            self._slots[seq.slot] = None
            self._slot_last_used[seq.slot] = self._step

    def _active(self, *statuses: Status) -> list[Sequence]:
        """Sequences in slots, in slot order; of any of `statuses` if given."""
        return [s for s in self._slots if s is not None and (not statuses or s.status in statuses)]

    def _residents(self) -> list[Sequence]:
        return [seq for seq in self._active() if seq.is_resident]

    def _join_line(self, seq: Sequence) -> None:
        seq.line_ticket = self._next_ticket
        self._next_ticket += 1

    def check(self) -> None:
        """Raise InvariantViolation unless SPEC S3 holds."""
        for seq in self._active():
            holds = seq.is_resident or seq.status is Status.PREEMPTING
            if len(seq.table) != (pages_for(seq.num_computed) if holds else 0):
                raise InvariantViolation(
                    f"sequence {seq.seq_id} ({seq.status.value}) holds {len(seq.table)} pages "
                    f"for {seq.num_computed} computed tokens"
                )
        self.pool.check([*(seq.table for seq in self._active()), *self._parking.holdings()])
