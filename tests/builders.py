"""Builders for sequences, schedulers and runs, so that a test says only what it is about."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from typing_extensions import Unpack

from kvalet.core.changes import Change, ChangeKind
from kvalet.core.config import (
    PreemptionConfig,
    SchedulerConfig,
    ShiftConfig,
    SlotConfig,
    StepConfig,
)
from kvalet.core.plan import PAGE_CELLS, PageId, SeqId, StepOutcome, StepPlan, pages_for
from kvalet.core.request import Request, SamplingParams
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import Sequence
from kvalet.core.store import HostBudget
from kvalet.engine.base import Engine
from kvalet.engine.fake import SHIFT_MARK, FakeEngine, next_token
from kvalet.runtime.messages import Delta, Part, PartKind, TokenInfo

GREEDY = SamplingParams(temperature=0.0)


def make_prompt(num_tokens: int, salt: int = 0) -> tuple[int, ...]:
    """Differs from the prompt of any other salt from its first token on."""
    return tuple((salt * 31 + i * 7 + i // 11) % 250 for i in range(num_tokens))


class SequenceOptions(TypedDict, total=False):
    priority: int
    cache_prompt: bool
    id_slot: int | None
    num_keep: int
    num_discard: int


class SchedulerOptions(TypedDict, total=False):
    n_ctx: int
    batch_size: int
    max_queue: int
    decode_chunk: int
    victim_policy: str | None
    host_budget_pages: int | None
    preempt_every: int
    planner: bool
    preempt: bool
    trigger: str
    entry_order: str
    rotate_s: float
    disk_budget_pages: int
    cache_budget_pages: int | None
    mirror: bool
    lookahead_steps: int
    context_shift: bool
    replay_margin: int


GROUPS = {
    "slots": SlotConfig,
    "steps": StepConfig,
    "shift": ShiftConfig,
    "preemption": PreemptionConfig,
}
BUDGETS = {
    "parked": "host_budget_pages",
    "disk": "disk_budget_pages",
    "cached": "cache_budget_pages",
}


def make_config(num_slots: int = 4, **options: Unpack[SchedulerOptions]) -> SchedulerConfig:
    """By the names of fields, in whichever group they stand. No replay waits for a margin unless
    told otherwise."""
    given: dict[str, Any] = {"num_slots": num_slots, "replay_margin": 0, **options}
    budgets = {name: given.pop(long) for name, long in BUDGETS.items() if long in given}
    for group, kind in GROUPS.items():
        names = [item.name for item in fields(kind) if item.name in given]
        given[group] = kind(**{name: given.pop(name) for name in names})
    return SchedulerConfig(host_budget=HostBudget(**budgets), **given)


def make_seq(
    seq_id: int,
    num_prompt: int = 40,
    max_new_tokens: int | None = 50,
    *,
    prompt: tuple[int, ...] | None = None,
    sampling: SamplingParams = GREEDY,
    **options: Unpack[SequenceOptions],
) -> Sequence:
    prompt = prompt or make_prompt(num_prompt, seq_id)
    request = Request(f"request-{seq_id}", prompt, max_new_tokens, sampling, **options)
    return Sequence(SeqId(seq_id), request)


def make_scheduler(
    num_pages: int = 16, num_slots: int = 4, **options: Unpack[SchedulerOptions]
) -> Scheduler:
    options.setdefault("n_ctx", num_pages * PAGE_CELLS)
    options.setdefault("decode_chunk", 64)
    return Scheduler(make_config(num_slots, **options), num_pages, root=b"test")


@dataclass
class Run:
    """A scheduler on an engine, checked after every step."""

    scheduler: Scheduler
    engine: Engine
    plans: list[StepPlan] = field(default_factory=list[StepPlan])
    outcomes: list[StepOutcome] = field(default_factory=list[StepOutcome])
    changes: list[Change] = field(default_factory=list[Change])
    peak_pages: int = 0

    def step(self, now: float | None = None) -> StepPlan:
        """`now`: a second a step unless told otherwise."""
        plan = self.scheduler.plan(float(len(self.plans)) if now is None else now)
        self.scheduler.pool.check(self._holdings())
        outcome = self.engine.execute(plan)
        self.scheduler.commit(plan, outcome)
        self.scheduler.check()
        self.plans.append(plan)
        self.outcomes.append(outcome)
        self.changes += self.scheduler.take_changes()
        self.peak_pages = max(self.peak_pages, self.scheduler.pool.num_referenced)
        return plan

    def until_idle(self, max_steps: int = 5000, each: Callable[[int], None] | None = None) -> "Run":
        for count in range(max_steps):
            if not self.scheduler.has_work:
                return self
            if each is not None:
                each(count)
            self.step()
        raise AssertionError(f"not idle after {max_steps} steps")

    def of(self, kind: ChangeKind) -> list[int]:
        return [change.seq_id for change in self.changes if change.kind is kind]

    @property
    def num_finished(self) -> int:
        return len(self.of(ChangeKind.FINISHED))

    def _holdings(self) -> list[list[PageId]]:
        active = [seq.table for seq in self.scheduler.slots if seq is not None]
        return [*active, *self.scheduler._transfers.holdings()]


def run(
    seqs: Iterable[Sequence], scheduler: Scheduler | None = None, engine: Engine | None = None
) -> Run:
    scheduler = scheduler or make_scheduler()
    for seq in seqs:
        scheduler.add(seq)
    return Run(scheduler, engine or FakeEngine(scheduler.pool.num_pages)).until_idle()


def alone_endless(seq: Sequence, n_ctx: int, num_vocab: int = 256) -> list[int]:
    """All generated tokens of `seq` with context shifts, by definition: keep whole pages, drop half
    of the other pages that are in use, mark what moved."""
    assert seq.request.max_new_tokens is not None
    cells, generated = list(seq.request.prompt), []
    for index in range(seq.request.max_new_tokens):
        if len(cells) >= n_ctx:
            num_pages = pages_for(len(cells) - 1)
            keep = min(pages_for(seq.request.num_keep), num_pages - 2)
            drop = max(1, (num_pages - keep) // 2)
            first, last = keep * PAGE_CELLS, (keep + drop) * PAGE_CELLS
            moved = [cell + drop * PAGE_CELLS * SHIFT_MARK for cell in cells[last:-1]]
            cells = [*cells[:first], *moved, cells[-1]]
        cells.append(next_token(cells, seq.request.sampling, index, num_vocab))
        generated.append(cells[-1])
    return generated


def alone(seq: Sequence, n_ctx: int = 512, num_vocab: int = 256) -> list[int]:
    """The tokens of `seq` by the fake engine's definition: no pool, no scheduler."""
    tokens = list(seq.request.prompt)
    for index in range(min(n_ctx - len(tokens), seq.request.max_new_tokens or n_ctx)):
        tokens.append(next_token(tokens, seq.request.sampling, index, num_vocab))
    return tokens


def said(text: str, *tokens: TokenInfo) -> Delta:
    """What a client is sent of an ordinary text."""
    return Delta((Part(PartKind.CONTENT, text),), tokens)
