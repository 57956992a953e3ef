"""Whatever is asked of the loop and whatever breaks, every client gets a complete, true story."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.clients import (
    Bench,
    Client,
    check_story,
    generation,
    letters,
    solo_tokens,
)

from kvalet.core.plan import Grant, StepPlan, Transfer
from kvalet.core.request import Request
from kvalet.errors import EngineError
from kvalet.runtime.messages import Finished


@dataclass(frozen=True)
class Visit:
    """A chat that comes at a step and perhaps gives up at a later one."""

    wanted: Request
    arrives: int
    gives_up: int | None


visits = st.builds(
    Visit,
    wanted=st.builds(
        generation,
        salt=st.integers(1, 9),
        num_prompt=st.integers(1, 150),
        max_new_tokens=st.integers(1, 60),
        stop=st.tuples(st.text("abc", min_size=1, max_size=3)),
    ),
    arrives=st.integers(1, 40),
    gives_up=st.none() | st.integers(1, 100),
)
benches = st.builds(
    Bench,
    num_pages=st.just(6),
    num_slots=st.integers(1, 4),
    transfer_steps=st.integers(0, 3),
    options=st.fixed_dictionaries(
        {
            "preempt_every": st.sampled_from([0, 0, 7]),
            "host_budget_pages": st.sampled_from([None, 0, 2]),
            "planner": st.booleans(),
            "entry_order": st.sampled_from(["head", "parked", "pass"]),
            "context_shift": st.booleans(),
            "rotate_s": st.just(10.0),
        }
    ),
)


@dataclass
class Trouble:
    """Visitors come and go, and things break, as the steps go by."""

    bench: Bench
    visits: list[Visit]
    failing: set[int]  # steps, transfers and positions of sequence 1
    parking: set[int]  # steps at which what is in slot 0 is parked on request, for a while
    clients: dict[int, Client] = field(default_factory=dict[int, Client])
    cancelled: set[int] = field(default_factory=set[int])

    def run(self) -> None:
        self.bench.faults.compute = self.fail_row
        self.bench.faults.transfer = self.fail_copy
        self.bench.before_step = self.happen
        self.arrive(0)
        self.bench.loop.run()

    def arrive(self, index: int) -> None:
        client = self.clients[index] = Client(self.visits[index].wanted)
        self.bench.submit(client, index + 1)

    def happen(self, plan: StepPlan) -> Exception | None:
        for index, visit in enumerate(self.visits):
            if visit.arrives == plan.step and index not in self.clients:
                self.arrive(index)
            if visit.gives_up == plan.step and index in self.clients:
                self.cancelled.add(index)
                self.bench.cancel(index + 1)
        if plan.step in self.parking:
            self.bench.park(0, timeout_s=15.0)
        return EngineError("step lost") if plan.step in self.failing else None

    def fail_row(self, grant: Grant) -> str | None:
        return "row lost" if grant.seq_id == 1 and grant.start in self.failing else None

    def fail_copy(self, copy: Transfer) -> str | None:
        return "copy lost" if copy.transfer_id in self.failing else None


@settings(max_examples=100, deadline=None)
@given(
    bench=benches,
    crowd=st.lists(visits, min_size=1, max_size=5),
    failing=st.sets(st.integers(1, 150), max_size=2),
    parking=st.sets(st.integers(1, 100), max_size=2),
)
def test_every_story_is_complete_and_true(
    bench: Bench, crowd: list[Visit], failing: set[int], parking: set[int]
) -> None:
    trouble = Trouble(bench, crowd, failing, parking)
    trouble.run()
    assert bench.loop.failure is None
    assert bench.scheduler.pool.num_referenced == bench.scheduler.store.num_held == 0
    for index, client in trouble.clients.items():
        assert client.ended.is_set() or index in trouble.cancelled
        check_story(client)
        check_text(client, bench)


def check_text(client: Client, bench: Bench) -> None:
    endless = bench.scheduler.config.shift.context_shift
    tokens = solo_tokens(client.wanted, bench.n_ctx, endless=endless)
    whole = letters(tokens).split(client.wanted.stop[0])[0]
    if client.events and isinstance(client.events[-1], Finished):
        assert client.text == whole
    else:
        assert whole.startswith(client.text)
