"""The scheduler under any sequence of calls: a Hypothesis state machine over the fake engine.

Whatever is added, cancelled, parked and resumed, and whatever goes wrong in between: bookkeeping
holds after every step, nobody passes the head of the line, and once everybody is let go on,
everybody ends with the tokens it has alone and nothing is held.
"""

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from kvalet.core.changes import ChangeKind
from kvalet.core.plan import PAGE_CELLS, Grant, SeqId, SlotId, Transfer
from kvalet.core.policy import LINE_ORDERS, PASSING, VICTIM_POLICIES
from kvalet.core.sequence import WAITING, Sequence, Status
from kvalet.engine.fake import FakeEngine
from kvalet.errors import Conflict
from tests.builders import Run, alone, make_prompt, make_scheduler, make_seq

PREFIX = make_prompt(2 * PAGE_CELLS, salt=99)
MAX_STEPS = 6000


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(3, 14),
        num_slots=st.integers(1, 5),
        budget=st.sampled_from([None, 0, 3, 9]),
        policy=st.sampled_from([None, *VICTIM_POLICIES]),
        trigger=st.sampled_from(["lookahead", "watermark"]),
        order=st.sampled_from(sorted(LINE_ORDERS)),
        transfer_steps=st.sampled_from([0, 2]),
        planner=st.booleans(),
        disk=st.sampled_from([0, 0, 5]),
        cache=st.sampled_from([0, 4, None]),
        mirror=st.booleans(),
    )
    def start(
        self,
        num_pages: int,
        num_slots: int,
        budget: int | None,
        policy: str | None,
        trigger: str,
        order: str,
        transfer_steps: int,
        planner: bool,
        disk: int,
        cache: int | None,
        mirror: bool,
    ) -> None:
        self.scheduler = make_scheduler(
            num_pages,
            num_slots,
            host_budget_pages=budget,
            victim_policy=policy,
            trigger=trigger,
            entry_order=order,
            planner=planner,
            disk_budget_pages=disk,
            cache_budget_pages=cache,
            mirror=mirror,
            lookahead_steps=8 if transfer_steps else 1,
        )
        self.engine = FakeEngine(num_pages, transfer_steps=transfer_steps)
        self.engine.faults.transfer = self._copy_fault
        self.engine.faults.no_room = self._room_fault
        self.run = Run(self.scheduler, self.engine)
        self.budget, self.disk, self.cache = budget, disk, cache
        self.saved: dict[str, tuple[int, ...]] = {}
        self.seqs: list[Sequence] = []
        self.cancelled: set[SeqId] = set()
        self.broken_copies = 0
        self.left_out = 0

    @rule(
        num_prompt=st.integers(1, 300),
        num_new=st.integers(1, 300),
        shared=st.integers(0, 2),
        priority=st.sampled_from([0, 0, 0, 1]),
        caches=st.booleans(),
    )
    def add(self, num_prompt: int, num_new: int, shared: int, priority: int, caches: bool) -> None:
        own = make_prompt(num_prompt, salt=len(self.seqs))
        prompt = (*PREFIX[: shared * PAGE_CELLS], *own)[: self.scheduler.config.n_ctx - 1]
        seq = make_seq(
            len(self.seqs),
            prompt=prompt,
            max_new_tokens=num_new,
            priority=priority,
            cache_prompt=caches,
        )
        self.scheduler.add(seq)
        self.seqs.append(seq)

    @rule(count=st.integers(1, 30))
    def step(self, count: int) -> None:
        for _ in range(count):
            before = self._line()
            self.run.step()
            self._check_nobody_passed(before)

    @rule(which=st.integers(0, 30))
    @precondition(lambda self: self.seqs)
    def cancel(self, which: int) -> None:
        seq = self.seqs[which % len(self.seqs)]
        if seq.status is not Status.ENDED:
            self.cancelled.add(seq.seq_id)
        self.scheduler.cancel(seq.seq_id)

    @rule(slot=st.integers(0, 4), timeout_s=st.sampled_from([5.0, 1e6]))
    def park(self, slot: int, timeout_s: float) -> None:
        if slot < self.scheduler.config.slots.num_slots:
            with suppress(Conflict):
                self.scheduler.park(SlotId(slot), timeout_s)

    @rule(slot=st.integers(0, 4))
    def resume(self, slot: int) -> None:
        if slot < self.scheduler.config.slots.num_slots:
            with suppress(Conflict):
                self.scheduler.resume(SlotId(slot))

    @rule(slot=st.integers(0, 4), path=st.sampled_from(["a", "b"]))
    def save(self, slot: int, path: str) -> None:
        if slot < self.scheduler.config.slots.num_slots:
            with suppress(Conflict):
                _, num_tokens = self.scheduler.states.save(SlotId(slot), path)
                occupant = self.scheduler.occupant(SlotId(slot))
                assert occupant is not None
                self.saved[path] = tuple(occupant.tokens[:num_tokens])

    @rule(slot=st.integers(0, 4), path=st.sampled_from(["a", "b"]))
    def restore(self, slot: int, path: str) -> None:
        if slot < self.scheduler.config.slots.num_slots and path in self.saved:
            with suppress(Conflict):
                self.scheduler.states.restore(SlotId(slot), path, self.saved[path], 30.0)

    @rule(slot=st.integers(0, 4))
    def erase(self, slot: int) -> None:
        if slot < self.scheduler.config.slots.num_slots:
            with suppress(Conflict):
                self.scheduler.states.erase(SlotId(slot))

    @rule(count=st.integers(1, 4))
    def break_copies(self, count: int) -> None:
        self.broken_copies = count

    @rule(count=st.integers(1, 4))
    def leave_out(self, count: int) -> None:
        self.left_out = count

    @invariant()
    def the_budgets_are_kept(self) -> None:
        store = self.scheduler.store
        assert self.budget is None or store.num_pinned <= self.budget
        assert store.num_on_disk <= self.disk

    @override
    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.broken_copies = self.left_out = 0
        for slot in range(self.scheduler.config.slots.num_slots):
            self.resume(slot)
        self.run.until_idle(MAX_STEPS)
        self.run.step(now=1e9)  # what idle slots keep is out of time
        self.run.until_idle()
        assert not self.run.of(ChangeKind.FAILED)
        for seq in self.seqs:
            if seq.seq_id not in self.cancelled:
                assert seq.tokens == alone(seq, self.scheduler.config.n_ctx)
        store = self.scheduler.store
        assert (self.scheduler.pool.num_referenced, store.num_pinned, store.num_on_disk) == (0,) * 3
        assert self.cache is None or store.num_cached <= self.cache

    def _copy_fault(self, transfer: Transfer) -> str | None:
        if not self.broken_copies:
            return None
        self.broken_copies -= 1
        return "injected"

    def _room_fault(self, grant: Grant) -> bool:
        if not self.left_out:
            return False
        self.left_out -= 1
        return True

    def _line(self) -> list[tuple[tuple[object, ...], Sequence]]:
        order = LINE_ORDERS[self.scheduler.config.preemption.entry_order]
        return [
            (order(seq), seq)
            for seq in self.scheduler.slots
            if seq is not None and seq.status in WAITING and seq.line_ticket and not seq.is_held
        ]

    def _check_nobody_passed(self, before: list[tuple[tuple[object, ...], Sequence]]) -> None:
        """Of those that were in the line, who is out of it came before who is still there."""
        if self.scheduler.config.preemption.entry_order in PASSING:
            return
        entered = [key for key, seq in before if seq.is_resident]
        stayed = [key for key, seq in before if seq.status in WAITING]
        assert not entered or not stayed or max(entered) < min(stayed)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(stateful_step_count=25)
