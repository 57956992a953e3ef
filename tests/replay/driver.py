"""Plays a scenario: the real scheduler over the fake engine, called as the loop calls it.

Uses the scheduler's public face only. Sequences and schedulers are each built by one function
here, and plans are read by `canonical` alone. Time and what a step takes are computed from the
step, so that measured pacing takes part and a play is the same everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from kvalet.core.plan import (
    Direction,
    Fault,
    FinishReason,
    SeqId,
    SlotId,
    StepOutcome,
    StepPlan,
    Transfer,
)
from kvalet.core.request import Request, SamplingParams
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import Sequence
from kvalet.engine.fake import UNUSED, FakeEngine, Faults, StateFile
from kvalet.errors import Conflict, EngineError, Overloaded, RequestError
from tests.builders import SchedulerOptions, make_config, make_prompt
from tests.replay import canonical
from tests.replay.scenario import Arrival, Cancel, FaultRules, Order, Scenario

PREFIX_SALT = 1000  # of shared prefixes; no request's own salt is as large
NO_FILE = make_prompt(64, salt=PREFIX_SALT - 1)  # what is asked of a state file that is not there


@dataclass
class Trace:
    """What came of a scenario, as lines of text."""

    scenario: Scenario
    plans: list[str] = field(default_factory=list[str])
    events: list[str] = field(default_factory=list[str])  # changes, refusals, cancels, faults
    counters: str = ""


def play(scenario: Scenario) -> Trace:
    player = _Player(scenario)
    while not player.is_over:
        player.step()
    player.trace.counters = canonical.counters_line(player.scheduler.counters)
    return player.trace


def make_scheduler(scenario: Scenario) -> Scheduler:
    """An option that no part of the configuration knows is an error."""
    config = make_config(**cast("SchedulerOptions", scenario.options))
    return Scheduler(config, scenario.num_pages, root=b"replay")


def make_family(arrival: Arrival, first_id: int) -> tuple[Sequence, ...]:
    prefix = make_prompt(arrival.num_shared, PREFIX_SALT + arrival.prefix)
    prompt = (*prefix, *make_prompt(arrival.num_prompt, arrival.salt))
    requests = (
        Request(
            request_id=f"request-{first_id}",
            prompt=prompt,
            max_new_tokens=arrival.num_new,
            sampling=SamplingParams(
                temperature=arrival.temperature,
                repeat_penalty=arrival.repeat_penalty,
                seed=arrival.seed,
                choice=choice,
            ),
            priority=arrival.priority,
            cache_prompt=arrival.cache_prompt,
            id_slot=arrival.id_slot,
            index=choice,
            num_keep=arrival.num_keep,
            num_discard=arrival.num_discard,
        )
        for choice in range(arrival.choices)
    )
    return tuple(
        Sequence(SeqId(first_id + index), request) for index, request in enumerate(requests)
    )


class _Player:
    def __init__(self, scenario: Scenario) -> None:
        self.trace = Trace(scenario)
        self.scheduler = make_scheduler(scenario)
        self._scenario = scenario
        self._step = 0
        self._next_id = 1
        self._sequences: list[Sequence] = []  # that were taken
        self._ends_at: dict[SeqId, int | None] = {}
        self._cancels = list(scenario.cancels)
        self._engine = FakeEngine(
            scenario.num_pages,
            max_step_tokens=self.scheduler.config.batch_size,
            transfer_steps=scenario.transfer_steps,
            faults=_faults(scenario.faults, lambda: self._step),
        )

    @property
    def is_over(self) -> bool:
        is_done = self._step > self._scenario.last_step and not self.scheduler.has_work
        return is_done or self._step >= self._scenario.max_steps

    def step(self) -> None:
        for arrival in self._scenario.arrivals:
            if arrival.step == self._step:
                self._add(arrival)
        for order in self._scenario.orders:
            if order.step == self._step:
                self._obey(order)
        for cancel in list(self._cancels):
            self._cancel(cancel)
        plan = self.scheduler.plan(self._step * self._scenario.step_s)
        self.trace.plans.append(canonical.plan_line(plan))
        self._note_changes()
        outcome = self._judge(plan, self._execute(plan))
        self._note_faults(outcome)
        self.scheduler.commit(plan, outcome)
        self._note_changes()
        self._step += 1

    def _add(self, arrival: Arrival) -> None:
        family = make_family(arrival, self._next_id)
        self._next_id += len(family)
        self._ends_at.update((seq.seq_id, arrival.ends_at) for seq in family)
        try:
            self.scheduler.add(*family)
        except (RequestError, Overloaded) as error:
            self._note("refused", "add", type(error).__name__)
        else:
            self._sequences += family

    def _obey(self, order: Order) -> None:
        try:
            self._do(order, SlotId(order.slot))
        except Conflict:
            self._note("refused", order.do, order.slot)
        else:
            self._note("done", order.do, order.slot)

    def _do(self, order: Order, slot: SlotId) -> None:
        scheduler, files = self.scheduler, self._engine.files
        match order.do:
            case "park":
                scheduler.park(slot, order.timeout_s)
            case "resume":
                scheduler.resume(slot)
            case "save":
                scheduler.states.save(slot, order.path)
            case "restore":
                tokens = files[order.path].tokens if order.path in files else NO_FILE
                scheduler.states.restore(slot, order.path, tokens, order.timeout_s)
            case "erase":
                scheduler.states.erase(slot)
            case "damage":
                if order.path in files:
                    files[order.path] = _damaged(files[order.path])

    def _cancel(self, cancel: Cancel) -> None:
        if cancel.step > self._step:
            return
        for seq in self._sequences:
            if seq.status.value == cancel.state:
                self._cancels.remove(cancel)
                self._note("cancel", seq.seq_id, cancel.state)
                self.scheduler.cancel(seq.seq_id)
                return

    def _execute(self, plan: StepPlan) -> StepOutcome:
        """As the loop does: a step that fails ends who takes part in it."""
        try:
            return self._engine.execute(plan)
        except EngineError as error:
            return StepOutcome(
                failed={grant.seq_id: str(error) for grant in plan.grants},
                failed_transfers={copy.transfer_id: Fault(str(error)) for copy in plan.transfers},
            )

    def _judge(self, plan: StepPlan, outcome: StepOutcome) -> StepOutcome:
        """With what the loop's outputs and the engine's watch would add."""
        finished = {}
        for grant in plan.grants:
            index, end = canonical.draw_index(grant), self._ends_at[grant.seq_id]
            is_drawn = index is not None and grant.seq_id in outcome.sampled
            if is_drawn and end is not None and index is not None and index + 1 >= end:
                finished[grant.seq_id] = FinishReason.EOS
        return replace(outcome, finished=finished, compute_s=_compute_s(plan))

    def _note_changes(self) -> None:
        for change in self.scheduler.take_changes():
            self.trace.events.append(canonical.change_line(self._step, change))

    def _note_faults(self, outcome: StepOutcome) -> None:
        for transfer_id in outcome.failed_transfers:
            self._note("fault", "transfer", transfer_id)
        for seq_id in outcome.not_run:
            self._note("fault", "no room", seq_id)
        for seq_id in outcome.failed:
            self._note("fault", "compute", seq_id)

    def _note(self, what: str, *more: int | str) -> None:
        self.trace.events.append(canonical.line([what, self._step, *more]))


def _compute_s(plan: StepPlan) -> float:
    """A step of this much: the weights, each row, and the cells that each row looks at."""
    num_cells = sum(grant.start + len(grant.tokens) for grant in plan.grants)
    num_rows = sum(len(grant.tokens) for grant in plan.grants)
    return 0.01 + 0.0004 * num_rows + 0.000002 * num_cells if num_rows else 0.0


def _faults(rules: FaultRules, step: Callable[[], int]) -> Faults:
    def every(count: int) -> Callable[[], bool]:
        """Whether this call is one that goes wrong."""
        num_calls = 0

        def is_hit() -> bool:
            nonlocal num_calls
            num_calls += 1
            return count > 0 and num_calls % count == 0 and step() < rules.until

        return is_hit

    transfers, restores = every(rules.transfer), every(rules.restore)
    computes, shortages, steps = every(rules.compute), every(rules.no_room), every(rules.execute)

    def transfer_fault(transfer: Transfer) -> str | None:
        is_hit = transfers()
        is_restore_hit = transfer.direction is Direction.IN and restores()
        return "injected" if is_hit or is_restore_hit else None

    return Faults(
        compute=lambda grant: "injected" if computes() else None,
        transfer=transfer_fault,
        no_room=lambda grant: shortages(),
        execute=lambda plan: EngineError("injected") if steps() else None,
    )


def _damaged(file: StateFile) -> StateFile:
    first, *others = file.pages
    return replace(file, pages=((UNUSED, *first[1:]), *others))
