"""Clients of the main loop, and a bench that drives it on the test's own thread."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tests.builders import (
    GREEDY,
    SchedulerOptions,
    alone,
    alone_endless,
    make_prompt,
    make_scheduler,
)
from typing_extensions import override

from kvalet.core.plan import PAGE_CELLS, SeqId, StepPlan
from kvalet.core.request import Request
from kvalet.core.sequence import Sequence as Seq
from kvalet.engine.fake import FakeEngine, Faults
from kvalet.runtime.calls import Call, Later
from kvalet.runtime.inbox import Cancel, Inbox, Message, Stop, Submit
from kvalet.runtime.loop import EngineLoop
from kvalet.runtime.messages import (
    Delta,
    Event,
    Failed,
    Finished,
    Preempted,
    Resumed,
    SlotState,
    SlotView,
    Snapshot,
)
from kvalet.runtime.record import StepRecorder
from kvalet.runtime.stream import Stream, Vocabulary

T = TypeVar("T")

# Every token is the text of one letter.
LETTERS = Vocabulary(token_bytes=lambda token: bytes([97 + token % 26]), eos_ids=frozenset())


def generation(salt: int = 1, num_prompt: int = 40, **kw: object) -> Request:
    base = Request(f"request-{salt}", make_prompt(num_prompt, salt), 50, GREEDY)
    return replace(base, **kw)  # type: ignore[arg-type]  # a test names the fields it is about


def solo_tokens(wanted: Request, n_ctx: int, *, endless: bool = False) -> list[int]:
    """What `wanted` generates with nobody beside it, by the fake engine's definition."""
    seq = Seq(SeqId(0), wanted)
    return alone_endless(seq, n_ctx) if endless else alone(seq, n_ctx)[seq.num_prompt :]


def letters(tokens: Sequence[int]) -> str:
    return b"".join(map(LETTERS.token_bytes, tokens)).decode()


@dataclass
class Client:
    """A sink that keeps what it is told, call by call."""

    wanted: Request = field(default_factory=generation)
    each: Callable[[Sequence[Event]], None] = lambda events: None
    calls: list[list[Event]] = field(default_factory=list[list[Event]])
    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, events: Sequence[Event]) -> None:
        assert not self.ended.is_set(), f"{events} after the end"
        self.calls.append(list(events))
        if isinstance(events[-1], Finished | Failed):
            self.ended.set()
        self.each(events)

    @property
    def events(self) -> list[Event]:
        return [event for call in self.calls for event in call]

    @property
    def text(self) -> str:
        return "".join(event.content for event in self.events if isinstance(event, Delta))

    @property
    def finished(self) -> Finished:
        assert isinstance(self.events[-1], Finished), self.events[-1]
        return self.events[-1]

    @property
    def error(self) -> Exception:
        assert isinstance(self.events[-1], Failed), self.events[-1]
        return self.events[-1].error

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


class WatchedInbox(Inbox):
    """Keeps how long the loop was ready to wait, read by read. It never waits: on the bench, time
    goes by steps, and nobody comes while the loop sleeps."""

    def __init__(self, when_idle: Callable[[], None]) -> None:
        super().__init__()
        self.patience: list[float | None] = []
        self._when_idle = when_idle

    @override
    def read(self, patience_s: float | None) -> Message | None:
        self.patience.append(patience_s)
        message = super().read(0)
        if message is None and patience_s is None:
            self._when_idle()
            message = super().read(0)
        return message


@dataclass
class Bench:
    """A loop over a fake engine that takes a second a step on a clock of its own. `run` ends once
    there is nothing left to do."""

    num_pages: int = 16
    num_slots: int = 4
    transfer_steps: int = 0
    options: SchedulerOptions = field(default_factory=SchedulerOptions)
    vocabulary: Vocabulary = LETTERS
    before_step: Callable[[StepPlan], Exception | None] = lambda plan: None
    recorder: StepRecorder | None = None
    now: float = 0.0
    plans: list[StepPlan] = field(default_factory=list[StepPlan])
    num_live: int = 0

    def __post_init__(self) -> None:
        self.faults = Faults(execute=self._execute)
        self.engine = FakeEngine(
            self.num_pages, transfer_steps=self.transfer_steps, faults=self.faults
        )
        self.scheduler = make_scheduler(self.num_pages, self.num_slots, **self.options)
        self.inbox = WatchedInbox(self._end)
        self.loop = EngineLoop(
            self.scheduler,
            self.engine,
            self.inbox,
            self.vocabulary,
            on_end=self._count_end,
            clock=lambda: self.now,
            check_every_step=True,
            recorder=self.recorder,
        )

    @property
    def n_ctx(self) -> int:
        return self.num_pages * PAGE_CELLS

    def submit(self, client: Client, seq_id: int = 1) -> SeqId:
        self.submit_all([client], seq_id)
        return SeqId(seq_id)

    def submit_all(self, clients: list[Client], first_id: int = 1) -> None:
        self.num_live += len(clients)
        family = [
            Stream.of(SeqId(seq_id), client.wanted, client, self.now)
            for seq_id, client in enumerate(clients, first_id)
        ]
        self.inbox.put(Submit(tuple(family)))

    def cancel(self, seq_id: int) -> None:
        self.inbox.put(Cancel(SeqId(seq_id)))

    def ask(self, run: Callable[[], T | Later[T]]) -> Future[T]:
        call = Call(run, Future[T]())
        self.inbox.put(call)
        return call.answer

    def snapshot(self) -> Future[Snapshot]:
        return self.ask(self.loop.snapshots.take)

    def park(
        self, slot: int, request_id: str | None = None, timeout_s: float = 1e6
    ) -> Future[SlotView]:
        return self.ask(lambda: self.loop.control.park(slot, request_id, timeout_s))

    def resume(self, slot: int, request_id: str | None = None) -> Future[SlotView]:
        return self.ask(lambda: self.loop.control.resume(slot, request_id))

    def save(self, slot: int, path: str, request_id: str | None = None) -> Future[SlotState]:
        return self.ask(lambda: self.loop.control.save(slot, request_id, path))

    def restore(self, slot: int, path: str, tokens: tuple[int, ...]) -> Future[SlotState]:
        return self.ask(lambda: self.loop.control.restore(slot, path, tokens, timeout_s=60.0))

    def erase(self, slot: int, request_id: str | None = None) -> Future[SlotState]:
        return self.ask(lambda: self.loop.control.erase(slot, request_id))

    def settle(self) -> None:
        """Have the loop read its inbox, and step until it has nothing to do."""
        self.loop._receive()
        while self.scheduler.has_work:
            self.loop.step()

    def run(self, *clients: Client) -> None:
        for seq_id, client in enumerate(clients, start=1):
            self.submit(client, seq_id)
        self.loop.run()

    def _execute(self, plan: StepPlan) -> Exception | None:
        self.plans.append(plan)
        self.now += 1.0
        return self.before_step(plan)

    def _count_end(self, seq_id: SeqId) -> None:
        self.num_live -= 1

    def _end(self) -> None:
        assert self.num_live == 0
        self.at_the_end = self.snapshot()
        self.inbox.put(Stop("nobody is left"))


def check_story(client: Client) -> None:
    """Notices alternate; while away, nothing but a failure comes."""
    is_away = False
    for event in client.events:
        assert isinstance(event, Resumed | Failed) or not is_away, client.events
        assert isinstance(event, Resumed) <= is_away, client.events
        is_away = isinstance(event, Preempted)
