"""Chats on the real engine with a tiny model, inside one process: the service as it is served.

A stage's clock goes one second a step and its prefill chunk is fixed, so a test's numbers are the
same on every machine. Whoever is on stage before `finish` is there in the first step; hooks run
between two steps, on the engine's own thread.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypedDict

from typing_extensions import Unpack

from kvalet.core.plan import PAGE_CELLS, Direction, Sampled, SeqId, StepPlan
from kvalet.core.request import Request, SamplingParams
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import Sequence
from kvalet.engine.ggml.engine import load_engine
from kvalet.model.gguf import GGUFFile
from kvalet.runtime.messages import Snapshot
from kvalet.runtime.service import Service
from tests.builders import SchedulerOptions, make_config, make_prompt
from tests.preemption.watched import WatchedEngine
from tests.runtime.clients import LETTERS, Client, check_story

GREEDY = SamplingParams(temperature=0.0, logprobs=True)
WARM = SamplingParams(temperature=0.9, repeat_penalty=1.1, seed=11, logprobs=True, num_probs=3)
PATIENCE_S = 100.0
ZERO_AT_REST = (
    *("requests_processing", "requests_deferred", "requests_preempted", "requests_waiting"),
    *("kv_cells_used", "kv_cells_shared", "preempt_ram_bytes", "host_store_bytes"),
)


class ChatOptions(TypedDict, total=False):
    priority: int
    num_keep: int
    cache_prompt: bool
    id_slot: int | None
    index: int


def chat(
    salt: int,
    num_prompt: int = 40,
    max_new_tokens: int | None = 50,
    *,
    prompt: tuple[int, ...] | None = None,
    sampling: SamplingParams = GREEDY,
    **options: Unpack[ChatOptions],
) -> Client:
    """Prompts of different salts differ from their first token on."""
    prompt = prompt or make_prompt(num_prompt, salt)
    return Client(Request(f"request-{salt}", prompt, max_new_tokens, sampling, **options))


@dataclass(frozen=True, slots=True)
class Told:
    """What came of a chat, to the bit."""

    drawn: tuple[Sampled, ...]  # tokens with log-probabilities
    text: str
    final_kv: bytes  # of all its cells when its last token was drawn


@dataclass
class Stage:
    model: Path
    num_pages: int = 16
    num_slots: int = 4
    options: SchedulerOptions = field(default_factory=SchedulerOptions)
    each: Callable[[StepPlan], object] = lambda plan: None
    at: Mapping[int, Callable[[], object]] = field(default_factory=dict[int, Callable[[], object]])
    clients: list[Client] = field(default_factory=list[Client])
    ids: list[SeqId] = field(default_factory=list[SeqId])
    cancelled: list[Client] = field(default_factory=list[Client])
    noted: list[int] = field(default_factory=list[int])  # what a hook writes down

    def __post_init__(self) -> None:
        options: SchedulerOptions = {"n_ctx": self.num_pages * PAGE_CELLS, "decode_chunk": 64}
        options.update(self.options)
        config = make_config(self.num_slots, **options)
        self.engine = WatchedEngine(
            load_engine(
                GGUFFile.open(self.model),
                num_pages=self.num_pages,
                threads=1,
                max_step_tokens=config.batch_size,
                max_seqs=self.num_slots,
                poison=True,
            )
        )
        self.engine.faults.execute = self._before_step
        self.service = Service(
            self.engine,
            config,
            LETTERS,
            clock=lambda: float(len(self.engine.plans)),
            check_every_step=True,
        )

    @property
    def n_ctx(self) -> int:
        return self.service.n_ctx

    @property
    def scheduler(self) -> Scheduler:
        """For looking at between two steps."""
        return self.service._loop._scheduler

    def submit(self, *clients: Client) -> None:
        for client in clients:
            self.submit_all([client])

    def submit_all(self, clients: list[Client]) -> None:
        ids = self.service.submit_all([client.wanted for client in clients], clients)
        for seq_id, client in zip(ids, clients, strict=True):
            self.engine.last_index[seq_id] = (client.wanted.max_new_tokens or 0) - 1
        self.ids += ids
        self.clients += clients

    def cancel(self, *clients: Client) -> None:
        self.cancelled += clients
        for client in clients:
            self.service.cancel(self.id_of(client))

    def finish(self, *clients: Client) -> "Stage":
        """Submit `clients`, and go on until everybody has ended. Nothing is held then."""
        self.submit(*clients)
        self.service.start()
        deadline = time.monotonic() + PATIENCE_S
        for client in self.clients:
            while not (client.ended.wait(0.02) or client in self.cancelled):
                assert time.monotonic() < deadline, f"{client.wanted.request_id} has not ended"
        self.shot = self._at_rest()
        assert self.service.failure is None
        assert self.service.close()
        for client in self.clients:
            check_story(client)
        self._check_counted()
        return self

    def id_of(self, client: Client) -> SeqId:
        return self.ids[next(i for i, c in enumerate(self.clients) if c is client)]

    def sequence(self, client: Client) -> Sequence | None:
        """Its sequence, while it has a slot."""
        found = (s for s in self.scheduler.slots if s and s.seq_id == self.id_of(client))
        return next(found, None)

    def told(self, client: Client) -> Told:
        seq_id = self.id_of(client)
        drawn = self.engine.drawn.get(seq_id, [])
        return Told(tuple(drawn), client.text, self.engine.final_kv.get(seq_id, b""))

    def count(self, name: str) -> int:
        """A counter of /metrics."""
        return round(self.shot.counters[f"{name}_total"])

    def check_pressed(self, *, swaps: bool, replays: bool, parks: int = 1) -> None:
        """Somebody was parked in a pool that was nearly full, and all came back: what moved, moved
        in the ways that are named and in no other."""
        num_parks = self.count("n_preempt")
        assert num_parks == self.count("n_resume") >= parks
        assert self.engine.peak_pages >= self.num_pages - self.num_slots
        self.check_moved(swaps=swaps, replays=replays)

    def check_moved(self, *, swaps: bool, replays: bool) -> None:
        """That pages were copied out and in, and tokens computed again, or not. `_check_counted`
        compares the counters with what the engine did."""
        for name in ("n_preempt_swap", "preempt_bytes_out", "preempt_bytes_in"):
            assert (self.count(name) > 0) == swaps, name
        for name in ("n_preempt_recompute", "n_recompute_tokens"):
            assert (self.count(name) > 0) == replays, name

    def check_as_alone(self, *clients: Client) -> None:
        """Tokens, log-probabilities, text, keys and values are those of a run with nobody beside,
        and as many as were asked for."""
        config = self.scheduler.config
        for client in clients or self.clients:
            told, wanted = self.told(client), replace(client.wanted, id_slot=None)
            assert told == alone(self.model, wanted, config.n_ctx, config.shift.context_shift)
            assert len(told.drawn) == client.finished.num_tokens

    def _before_step(self, plan: StepPlan) -> None:
        self.each(plan)
        if plan.step in self.at:
            self.at[plan.step]()

    def _check_counted(self) -> None:
        """What the counters say was moved and replayed is what the engine saw."""
        page_bytes, moved = self.engine.info.page_bytes, self.engine.moved
        assert self.count("preempt_bytes_out") == moved[Direction.OUT] * page_bytes
        assert self.count("preempt_bytes_in") == moved[Direction.IN] * page_bytes
        assert self.count("n_recompute_tokens") == self.engine.num_replayed
        modes = self.count("n_preempt_swap") + self.count("n_preempt_recompute")
        assert self.count("n_preempt") == modes

    def _at_rest(self) -> Snapshot:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer: Future[Snapshot] = self.service.snapshot()
            shot = answer.result(PATIENCE_S)
            held = {name: shot.gauges[name] for name in ZERO_AT_REST if shot.gauges[name]}
            if not held and all(view.state == "idle" for view in shot.slots):
                return shot
            assert time.monotonic() < deadline, held


@cache
def alone(model: Path, wanted: Request, n_ctx: int, context_shift: bool) -> Told:
    """What `wanted` generates with nobody beside it in an ample pool."""
    client = Client(wanted)
    num_pages = n_ctx // PAGE_CELLS + 8
    options: SchedulerOptions = {"n_ctx": n_ctx, "context_shift": context_shift}
    stage = Stage(model, num_pages, num_slots=1, options=options)
    stage.finish(client)
    assert stage.count("n_preempt") == 0
    return stage.told(client)
