"""Faults under pressure (behaviour P17): whoever they concern gets a clear end, everybody else the
text they have alone, and nothing stays held. One fault a run, at one call after the other."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import pytest
from tests.builders import SchedulerOptions
from tests.runtime.clients import Bench, Client, check_story, generation, letters, solo_tokens
from typing_extensions import override

from kvalet.core.policy import VICTIM_POLICIES
from kvalet.core.request import SamplingParams
from kvalet.errors import EngineError, InvariantViolation
from kvalet.runtime.messages import Failed

IsDue: TypeAlias = Callable[[], bool]
Fault: TypeAlias = Callable[[Bench, list[Client], IsDue], None]  # fails whenever it is due

NUM_RUNS = 5  # of a fault on a load
SWAP: SchedulerOptions = {}
RECOMPUTE: SchedulerOptions = {"host_budget_pages": 0}
OFTEN: SchedulerOptions = {"preempt_every": 9}
AHEAD: SchedulerOptions = {"mirror": True, "cache_budget_pages": 6}
ENDLESS: SchedulerOptions = {"context_shift": True, "n_ctx": 96, "rotate_s": 10.0}


def pressed(options: SchedulerOptions) -> tuple[Bench, list[Client]]:
    """Three chats, two of them with a common prompt, that do not fit together."""
    bench = Bench(num_pages=5, transfer_steps=2, options={"n_ctx": 160, **options})
    return bench, [
        Client(generation(salt, num_prompt=70, max_new_tokens=num_tokens))
        for salt, num_tokens in ((1, 50), (2, 60), (2, 80))
    ]


def run(bench: Bench, clients: list[Client]) -> list[Client]:
    """Who failed; everybody's story is checked."""
    bench.run(*clients)
    config = bench.scheduler.config
    failed = [client for client in clients if isinstance(client.events[-1], Failed)]
    for client in clients:
        check_story(client)
        whole = letters(
            solo_tokens(client.wanted, config.n_ctx, endless=config.shift.context_shift)
        )
        assert whole.startswith(client.text) if client in failed else whole == client.text
    assert bench.loop.failure is None
    assert bench.scheduler.pool.num_referenced == bench.scheduler.store.num_pinned == 0
    return failed


@dataclass
class Once:
    """True at call number `at`, counted from 0, and at no other."""

    at: int = -1
    num_calls: int = 0

    def __call__(self) -> bool:
        self.num_calls += 1
        return self.num_calls == self.at + 1


def sweep(fault: Fault, options: SchedulerOptions) -> list[list[Client]]:
    """Who failed, in runs with the fault at calls spread over those of a run without."""
    never = Once()
    bench, clients = pressed(options)
    fault(bench, clients, never)
    assert run(bench, clients) == []
    assert bench.scheduler.counters.n_preempt >= 1
    assert never.num_calls > 0
    failed: list[list[Client]] = []
    for at in range(0, never.num_calls, max(1, never.num_calls // NUM_RUNS)):
        bench, clients = pressed(options)
        fault(bench, clients, Once(at))
        failed.append(run(bench, clients))
    return failed


def lose_step(bench: Bench, clients: list[Client], is_due: IsDue) -> None:
    bench.before_step = lambda plan: EngineError("lost") if is_due() else None


def lose_row(bench: Bench, clients: list[Client], is_due: IsDue) -> None:
    bench.faults.compute = lambda grant: "lost" if is_due() else None


def lose_copy(bench: Bench, clients: list[Client], is_due: IsDue) -> None:
    bench.faults.transfer = lambda copy: "lost" if is_due() else None


def lack_room(bench: Bench, clients: list[Client], is_due: IsDue) -> None:
    bench.faults.no_room = lambda grant: is_due()


@pytest.mark.parametrize(
    ("fault", "most_failed", "options"),
    [
        *((lose_step, 3, options) for options in (RECOMPUTE, OFTEN, ENDLESS)),
        *((lose_row, 1, options) for options in (RECOMPUTE, OFTEN, ENDLESS)),
        *((lose_copy, 1, options) for options in (OFTEN, ENDLESS, AHEAD)),
        *((lack_room, 0, options) for options in (RECOMPUTE, OFTEN, ENDLESS)),
    ],
)
def test_a_fault_of_the_engine_at_any_call(
    fault: Fault, most_failed: int, options: SchedulerOptions
) -> None:
    for failed in sweep(fault, options):
        assert len(failed) <= most_failed
        words = {str(client.error) for client in failed}
        assert words <= {"lost", "failed to restore the preempted sequence"}


def test_copies_ahead_that_all_fail_end_no_sequence() -> None:
    bench, clients = pressed(AHEAD)
    bench.faults.transfer = lambda copy: "lost" if copy.seq_id is None else None
    assert run(bench, clients) == []
    assert bench.scheduler.counters.n_preempt_fail == 0


Method: TypeAlias = Callable[[Bench], Callable[..., object]]  # a public one of the pool or store


def broken(
    method: Method,
    bench: Bench,
    clients: list[Client],
    is_due: IsDue,
    error: type[Exception] = RuntimeError,
) -> None:
    """It fails while planning."""
    whole, plan = method(bench), bench.scheduler.plan
    is_planning = False

    def call(*args: Any) -> object:  # noqa: ANN401  # whatever the method takes
        if is_planning and is_due():
            raise error("oops")
        return whole(*args)

    def watched(now: float) -> object:
        nonlocal is_planning
        is_planning = True
        made = plan(now)
        is_planning = False
        return made

    setattr(whole.__self__, whole.__name__, call)  # type: ignore[attr-defined]  # of a bound method
    bench.scheduler.plan = watched  # type: ignore[method-assign,assignment]  # to look on


take: Fault = partial(broken, lambda bench: bench.scheduler.pool.take)
find: Fault = partial(broken, lambda bench: bench.scheduler.pool.find)
forget: Fault = partial(broken, lambda bench: bench.scheduler.pool.forget)
pin: Fault = partial(broken, lambda bench: bench.scheduler.store.pin)
add_cached: Fault = partial(broken, lambda bench: bench.scheduler.store.add_cached)


def ask_what_cannot_be_planned(bench: Bench, clients: list[Client], is_due: IsDue) -> None:
    class Unreadable(SamplingParams):
        @property
        @override
        def has_penalties(self) -> bool:
            if is_due():
                raise RuntimeError("oops")
            return False

    for client in clients:
        client.wanted = replace(client.wanted, sampling=Unreadable(temperature=0.0))


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        *((fault, OFTEN) for fault in (take, find, forget, pin, ask_what_cannot_be_planned)),
        *((fault, ENDLESS) for fault in (take, forget, pin)),
        *((fault, RECOMPUTE) for fault in (take, ask_what_cannot_be_planned)),
    ],
)
def test_a_fault_of_planning_for_one_sequence_at_any_call(
    fault: Fault, options: SchedulerOptions
) -> None:
    for failed in sweep(fault, options):
        assert [str(client.error) for client in failed] == ["planning failed: RuntimeError: oops"]


def test_a_fault_of_planning_for_all_spares_parked_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = VICTIM_POLICIES["smallest"]
    is_due: IsDue = Once()

    def failing(candidate: Any) -> tuple[Any, ...]:  # noqa: ANN401  # the core's own business
        if is_due():
            raise RuntimeError("oops")
        return policy(candidate)

    def fault(bench: Bench, clients: list[Client], now: IsDue) -> None:
        nonlocal is_due
        is_due = now

    monkeypatch.setitem(VICTIM_POLICIES, "smallest", failing)
    counts = [len(failed) for failed in sweep(fault, SWAP)]
    assert 0 not in counts
    assert {1, 2} & set(counts)  # of three


def test_a_fault_of_copying_ahead_ends_no_sequence(caplog: pytest.LogCaptureFixture) -> None:
    for failed in sweep(add_cached, AHEAD):
        assert failed == []
    assert "no longer copied ahead" in caplog.text


def test_what_failed_in_planning_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench, clients = pressed(SWAP)
    take(bench, clients, Once(5))
    failed = run(bench, clients)
    assert f"planning for {failed[0].wanted.request_id} failed" in caplog.text
    assert "RuntimeError: oops" in caplog.text


def test_broken_books_stop_the_loop_also_while_planning() -> None:
    bench, clients = pressed(SWAP)
    broken(lambda bench: bench.scheduler.pool.take, bench, clients, Once(2), InvariantViolation)
    bench.run(*clients)
    assert isinstance(bench.loop.failure, InvariantViolation)
    assert {str(client.error) for client in clients} == {"oops"}
