"""Who leaves the pool and who comes in: once per step, before its tokens are granted.

Joins trigger and policies (when, who) with Parking (how). Everybody who waits for room stands in
one line, new requests and parked sequences alike (behaviour S7).
"""

from kvalet.core import policy, room, rotation
from kvalet.core.batcher import Batcher
from kvalet.core.changes import Change, ChangeKind, Counters, Parked
from kvalet.core.config import SchedulerConfig
from kvalet.core.guard import Guard
from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import Tier
from kvalet.core.room import Entry, Pace
from kvalet.core.sequence import RUNNING, WAITING, ParkMode, Sequence, Status
from kvalet.core.slots import Slots
from kvalet.core.transfers import Transfers
from kvalet.core.triggers import make_trigger
from kvalet.errors import Conflict


class Preemption:
    def __init__(
        self,
        config: SchedulerConfig,
        slots: Slots,
        pool: PagePool,
        transfers: Transfers,
        parking: Parking,
        batcher: Batcher,
        guard: Guard,
        counters: Counters,
        changes: list[Change],
    ) -> None:
        """`changes`: where it reports what happens to sequences."""
        self._knobs = config.preemption
        self._rotate_s = config.shift.rotate_s
        self._slots = slots
        self._pool = pool
        self._transfers = transfers
        self._parking = parking
        self._batcher = batcher
        self._guard = guard
        self._counters = counters
        self._changes = changes
        self._trigger = make_trigger(config.preemption)
        self._victim_order = policy.VICTIM_POLICIES[config.preemption.victims]
        self._line_order = policy.LINE_ORDERS[config.preemption.entry_order]
        self._may_pass = config.preemption.entry_order in policy.PASSING
        self._now = 0.0
        self._next_ticket = 0
        self._is_short = False

    def run(self, now: float) -> None:
        """Parks and entries of a step; `now` in seconds."""
        self._now = now
        for seq in self._slots.take_started():
            self._join_line(seq)
        self._park_held()
        if self._knobs.preempt:
            self._park_forced()
            self._relieve()
        self._enter()
        if self._knobs.preempt:
            self._rotate()
        self._announce_waiting()

    def _join_line(self, seq: Sequence) -> None:
        seq.line_ticket = self.next_ticket()
        seq.waiting_since = self._now

    def next_ticket(self) -> int:
        self._next_ticket += 1
        return self._next_ticket

    def note_shortage(self) -> None:
        """The engine left a sequence out for lack of room: the next step parks somebody."""
        self._is_short = True

    def announce_resumed(self, seq: Sequence) -> None:
        if seq.is_announced and seq.status in (Status.PREFILL, Status.DECODE):
            seq.is_announced = False
            seq.park_mode = None
            self._changes.append(Change(seq.seq_id, ChangeKind.RESUMED))

    def _park_held(self) -> None:
        """Sequences held on request (behaviour P14); back in the line when their time is over."""
        for seq in self._slots.active():
            if seq.is_held and seq.status in RUNNING:
                self._park(seq, "request")
            elif seq.is_held and self._now >= seq.held_until:
                self.release(seq)

    def hold(self, seq: Sequence, timeout_s: float) -> None:
        """Park a running sequence in the next step, and keep it out of the line until `release`."""
        if seq.status not in RUNNING or seq.is_held:
            raise Conflict(f"slot {seq.slot} cannot be parked: it is {seq.status.value}")
        seq.is_held = True
        seq.held_until = self._now + timeout_s

    def release(self, seq: Sequence) -> None:
        if not seq.is_held:
            raise Conflict(f"slot {seq.slot} cannot be resumed: it is {seq.status.value}")
        seq.is_held = False
        self._join_line(seq)

    def _park_forced(self) -> None:
        """The test knob: every sequence, the leader and a lone one too (behaviour P13)."""
        every = self._knobs.preempt_every
        for seq in self._slots.active(Status.DECODE) if every else ():
            if seq.num_generated % every == 0 and seq.forced_at != seq.num_generated:
                seq.forced_at = seq.num_generated
                with self._guard(seq):
                    self._parking.forget_private_names(seq)
                    self._park(seq, "forced")

    def _relieve(self) -> None:
        """Park until the residents' next steps fit (behaviour P1, P2)."""
        is_short, self._is_short = self._is_short, False
        while self._is_pressed(is_short):
            victims = policy.choose_victims(
                self._residents(), self._gain, self._transfers.num_sharing, self.victim_key
            )
            if not victims:
                return
            for seq in victims:
                self._park(seq, "pressure")
            is_short = False

    def _is_pressed(self, is_short: bool) -> bool:
        residents, pace = self._residents(), self._pace()
        leaving = self._transfers.num_leaving(self._slots.active())
        if is_short:
            return leaving == 0
        return self._trigger.is_pressed(residents, self._pool, leaving, pace)

    def victim_key(self, seq: Sequence) -> tuple[object, ...]:
        """Passed over while another candidate exists: one that can only be copied and does not fit
        the budget, one parked often already, one part-way through a replay (behaviour P2, P7)."""
        is_stuck = not seq.can_replay and self._lacks_place(seq)
        is_starved = seq.num_preempts >= self._knobs.starved_after
        is_spared = is_starved or seq.status is Status.REPLAY
        return (is_stuck, is_spared, seq.request.priority, *self._victim_order(seq))

    def _gain(self, seq: Sequence) -> int:
        alone = sum(self._transfers.num_sharing(page) == 1 for page in seq.table)
        return alone + room.need(seq, self._pace())

    def _park(self, seq: Sequence, why: str) -> None:
        with self._guard(seq):
            tier, num_held, num_pages = self._parking.tier_for(seq), len(seq.table), 0
            if not seq.can_replay and self._lacks_place(seq):
                why += ", over the budget: it cannot be replayed"
                tier = Tier.RAM
            if tier is None:
                self._parking.drop(seq)
            else:
                num_pages = self._parking.swap_out(seq, tier)
                self._counters.count_parked_pages(num_held, num_pages)
            mode = ParkMode.of(tier)
            self._note_park(seq, mode)
            parked = Parked(mode, why, seq.num_computed, num_pages)
            self._changes.append(Change(seq.seq_id, ChangeKind.PREEMPTED, parked=parked))

    def _lacks_place(self, seq: Sequence) -> bool:
        """Whether the budgets do not hold it, or the place they name has just failed it."""
        return self._parking.tier_for(seq) is None or self._parking.has_failed(seq)

    def _note_park(self, seq: Sequence, mode: ParkMode) -> None:
        self._counters.count_park(mode)
        seq.park_mode = mode
        seq.is_announced = True
        seq.num_preempts += 1
        self._join_line(seq)

    def _enter(self) -> None:
        """The line. Nobody passes a head that does not fit; under `pass` smaller ones may, but for
        those that made way: they would take back what they gave (behaviour P8)."""
        somebody_waits = False
        for seq in self._line():
            if somebody_waits and (seq.makes_way or not self._may_pass):
                return
            with self._guard(seq):
                if seq.status is not Status.PREEMPTING and self._fits(seq):
                    self._let_in(seq)
                else:
                    somebody_waits = True

    def _line(self) -> list[Sequence]:
        waiting = [seq for seq in self._slots.active(*WAITING) if not seq.is_held]
        return sorted(waiting, key=self._line_order)

    def _let_in(self, seq: Sequence) -> None:
        if seq.status is Status.STARTED and seq.request.cache_prompt:
            self._counters.count_prefix(self._parking.entry(seq), seq.max_named)
        self._parking.bring_in(seq)
        self.note_return(seq)

    def note_return(self, seq: Sequence) -> None:
        """It is no longer on its way out, or away."""
        self._counters.n_resume += seq.park_mode is not None
        seq.is_held = seq.makes_way = False
        self.announce_resumed(seq)

    def head(self) -> Sequence | None:
        """Who is first in the line."""
        return next(iter(self._line()), None)

    def _fits(self, seq: Sequence) -> bool:
        if not self._parking.can_restore(seq):
            return False
        entry = self._parking.entry(seq)
        pace = self._batcher.pace(self._slots.active(), joining=True)
        return self._trigger.can_enter(seq, entry, self._residents(), self._pool, pace)

    def _rotate(self) -> None:
        """A resident that shifts for ever makes way for a head that waited long (behaviour P10)."""
        head = self.head()
        is_due = head is not None and self._now - head.waiting_since >= self._rotate_s
        if head is None or not is_due or self._transfers.is_moving:
            return
        with self._guard(head):
            entry, pace = self._parking.entry(head), self._pace()
            chosen = rotation.choose(
                head, self._residents(), lambda seq: self._lets_in(seq, head, entry, pace)
            )
            if chosen is not None and self._may_rotate(chosen):
                self._park(chosen, "rotation")
                chosen.makes_way = True

    def _lets_in(self, seq: Sequence, head: Sequence, entry: Entry, pace: Pace) -> bool:
        others = [s for s in self._residents() if s is not seq]
        alone = sum(self._transfers.num_sharing(page) == 1 for page in seq.table)
        clear = self._pool.num_clear + alone
        return room.can_enter(head, entry, others, clear, pace)

    def _may_rotate(self, seq: Sequence) -> bool:
        """Both states are held at once, so the budget must hold both."""
        if self._parking.tier_for(seq) is not None:
            return True
        if seq.refused_at != seq.line_ticket:
            seq.refused_at = seq.line_ticket
            self._changes.append(Change(seq.seq_id, ChangeKind.ROTATION_REFUSED))
        return False

    def _announce_waiting(self) -> None:
        """A client whose request did not get in is told so (behaviour N2)."""
        for seq in self._slots.active(Status.STARTED):
            if not seq.is_announced:
                seq.is_announced = True
                self._changes.append(Change(seq.seq_id, ChangeKind.WAITING))

    def _residents(self) -> list[Sequence]:
        return [seq for seq in self._slots.active() if seq.is_resident]

    def _pace(self) -> Pace:
        return self._batcher.pace(self._slots.active())
