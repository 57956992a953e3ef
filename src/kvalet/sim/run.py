"""One run: the real scheduler, the engine that is a cost model, and a workload.

The loop is that of `runtime/loop.py` without clients: arrivals, plan, execute, commit. Nothing here
decides anything.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from kvalet.core import request as core
from kvalet.core.changes import ChangeKind, Counters
from kvalet.core.plan import SeqId
from kvalet.core.request import SamplingParams
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import Sequence
from kvalet.engine.base import EngineInfo
from kvalet.errors import InvariantViolation
from kvalet.sim.costs import CostModel
from kvalet.sim.engine import CostEngine
from kvalet.sim.scenario import Scenario
from kvalet.sim.timeline import PHASES, Phase, Timeline
from kvalet.sim.workloads import Request

MAX_QUIET_STEPS = 1000  # in a row, with nothing computed and nothing landed
GREEDY = SamplingParams(temperature=0.0)
ROOT = b"simulated".ljust(32, b"\0")


@dataclass(slots=True)
class Run:
    """What came of it. Seconds count from the start of virtual time."""

    num_pages: int
    timelines: list[Timeline] = field(default_factory=list[Timeline])  # in order of arrival
    counters: Counters = field(default_factory=Counters)
    num_cached: int = 0  # prompt tokens found by name
    page_seconds: float = 0.0  # pages referenced, over time
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class _Live:
    seq: Sequence
    timeline: Timeline
    request: Request


class Simulation:
    def __init__(
        self,
        scenario: Scenario,
        requests: tuple[Request, ...],
        costs: CostModel,
        watch: Callable[[float, Scheduler], None] = lambda now, scheduler: None,
    ) -> None:
        """`watch` sees the time and the scheduler after every plan and every commit."""
        config = scenario.scheduler_config(costs.page_bytes, len(requests))
        info = EngineInfo(
            scenario.num_pages,
            costs.page_bytes,
            num_vocab=1,
            max_step_tokens=config.batch_size,
            fingerprint=ROOT,
        )
        self.scheduler = Scheduler(config, scenario.num_pages, ROOT)
        self._engine = CostEngine(costs, info, asynchronous=scenario.copies.beside_steps)
        self._watch = watch
        self._run = Run(scenario.num_pages, counters=self.scheduler.counters)
        self._live: dict[SeqId, _Live] = {}
        self._later: dict[int, list[Request]] = {}  # further turns, the last one first
        self._arrivals: list[tuple[float, int, Request, tuple[int, ...]]] = []
        self._num_expected = 0
        for request in reversed(requests):
            self._later.setdefault(request.conversation, []).append(request)
        for turns in sorted(self._later.values(), key=lambda turns: turns[-1].conversation):
            self._expect(turns.pop(), (), 0.0)

    def run(self) -> Run:
        """Until every request has ended. Raises InvariantViolation if that never comes."""
        self._run.start_s = self._engine.now = self._arrivals[0][0]
        num_quiet = 0
        while self._live or self._arrivals:
            if not self._live:
                self._engine.now = max(self._engine.now, self._arrivals[0][0])
            self._receive()
            num_quiet = 0 if self._step() else num_quiet + 1
            if num_quiet > MAX_QUIET_STEPS:
                raise InvariantViolation(f"the simulation stands still at {self._engine.now:.3f} s")
        self._run.end_s = max(timeline.end_s or 0.0 for timeline in self._run.timelines)
        return self._run

    def _expect(self, request: Request, history: tuple[int, ...], earliest_s: float) -> None:
        """Arrivals at the same time come in the order in which they were expected."""
        arrival_s = max(request.arrival_s, earliest_s)
        heapq.heappush(self._arrivals, (arrival_s, self._num_expected, request, history))
        self._num_expected += 1

    def _receive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._engine.now:
            arrival_s, _, request, history = heapq.heappop(self._arrivals)
            new = (request.conversation + 1,) * (request.num_prompt - len(history))
            wanted = core.Request(
                str(request.conversation),
                history[: request.num_prompt] + new,
                request.max_tokens,
                GREEDY,
                priority=request.priority,
            )
            seq = Sequence(SeqId(len(self._run.timelines)), wanted)
            timeline = Timeline(request.conversation, arrival_s, request.priority)
            timeline.enter(Phase.WAITING, arrival_s)
            self._run.timelines.append(timeline)
            self._live[seq.seq_id] = _Live(seq, timeline, request)
            self._engine.expect(seq.seq_id, request.num_output)
            self.scheduler.add(seq)

    def _step(self) -> bool:
        """Whether it brought anything."""
        started = self._engine.now
        plan = self.scheduler.plan(started)
        self._note_phases(started)
        self._watch(started, self.scheduler)
        num_referenced = self.scheduler.pool.num_referenced
        outcome = self._engine.execute(plan)
        self.scheduler.commit(plan, outcome)
        now = self._engine.now
        self._run.page_seconds += num_referenced * (now - started)
        self._note_phases(now)
        for change in self.scheduler.take_changes():
            if change.kind in (ChangeKind.FINISHED, ChangeKind.FAILED):
                self._end(change.seq_id, now, is_complete=change.kind is ChangeKind.FINISHED)
        self._watch(now, self.scheduler)
        return bool(plan.grants or outcome.landed or self._engine.is_copying)

    def _note_phases(self, now: float) -> None:
        for seq in self.scheduler.slots:
            if seq is not None:
                self._live[seq.seq_id].timeline.enter(PHASES[seq.status], now)

    def _end(self, seq_id: SeqId, now: float, *, is_complete: bool) -> None:
        live = self._live.pop(seq_id)
        live.timeline.end_s = now
        live.timeline.is_complete = is_complete
        live.timeline.num_output = live.seq.num_generated
        self._run.num_cached += live.seq.num_cached
        turns = self._later[live.request.conversation]
        if turns:
            turn = turns.pop()
            self._expect(turn, tuple(live.seq.tokens), now + turn.pause_s)


def simulate(scenario: Scenario, requests: tuple[Request, ...], costs: CostModel) -> Run:
    return Simulation(scenario, requests, costs).run()
