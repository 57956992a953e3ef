"""Faults under pressure (behaviour P17): whoever they concern gets a clear end, everybody else the
text they have alone, and nothing stays held. One fault a run, at one call after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import pytest
from tests.builders import SchedulerOptions
from tests.runtime.clients import Bench, Client, check_story, generation, letters, solo_tokens

from kvalet.errors import EngineError, InvariantViolation
from kvalet.runtime.messages import Failed

IsDue: TypeAlias = Callable[[], bool]
Fault: TypeAlias = Callable[[Bench, IsDue], None]  # lets something fail whenever it is due

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
    fault(bench, never)
    assert run(bench, clients) == []
    assert bench.scheduler.counters.n_preempt >= 1
    failed: list[list[Client]] = []
    for at in range(0, never.num_calls, max(1, never.num_calls // NUM_RUNS)):
        bench, clients = pressed(options)
        fault(bench, Once(at))
        failed.append(run(bench, clients))
    return failed


def lose_step(bench: Bench, is_due: IsDue) -> None:
    bench.before_step = lambda plan: EngineError("lost") if is_due() else None


def lose_row(bench: Bench, is_due: IsDue) -> None:
    bench.faults.compute = lambda grant: "lost" if is_due() else None


def lose_copy(bench: Bench, is_due: IsDue) -> None:
    bench.faults.transfer = lambda copy: "lost" if is_due() else None


def lack_room(bench: Bench, is_due: IsDue) -> None:
    bench.faults.no_room = lambda grant: is_due()


@pytest.mark.parametrize("options", [RECOMPUTE, OFTEN, ENDLESS])
@pytest.mark.parametrize(
    ("fault", "most_failed"), [(lose_step, 3), (lose_row, 1), (lose_copy, 1), (lack_room, 0)]
)
def test_a_fault_of_the_engine_at_any_call(
    fault: Fault, most_failed: int, options: SchedulerOptions
) -> None:
    for failed in sweep(fault, options):
        assert len(failed) <= most_failed
        words = {str(client.error) for client in failed}
        assert words <= {"lost", "failed to restore the preempted sequence"}


def broken(part: str, method: str, *, late: bool = False) -> Fault:
    """A method of the scheduler or of a part of it fails while planning; `late`: after it has done
    its work."""

    def fault(bench: Bench, is_due: IsDue) -> None:
        owner = attrgetter(part)(bench) if part else bench
        whole, plan = getattr(owner, method), bench.scheduler.plan
        is_planning = False

        def call(*args: Any) -> object:  # noqa: ANN401  # whatever the method takes
            done = whole(*args) if late else None
            if is_planning and is_due():
                raise RuntimeError("oops")
            return done if late else whole(*args)

        def watched(now: float) -> object:
            nonlocal is_planning
            is_planning = True
            made = plan(now)
            is_planning = False
            return made

        setattr(owner, method, call)
        bench.scheduler.plan = watched  # type: ignore[method-assign,assignment]  # to look on

    return fault


FOR_ONE = {
    "take": broken("scheduler.pool", "take"),
    "find": broken("scheduler.pool", "find"),
    "forget": broken("scheduler.pool", "forget"),
    "pin": broken("scheduler.store", "pin"),
    "entry": broken("scheduler._parking", "entry"),
    "bring in": broken("scheduler._parking", "bring_in", late=True),
    "swap out": broken("scheduler._parking", "swap_out", late=True),
    "drop": broken("scheduler._parking", "drop", late=True),
    "take named": broken("scheduler._parking", "take_named", late=True),
    "grant": broken("scheduler._batcher", "_grant", late=True),
}


@pytest.mark.parametrize(
    ("place", "options"),
    [
        *((place, OFTEN) for place in FOR_ONE if place != "drop"),
        *((place, ENDLESS) for place in ("take", "forget", "pin", "bring in")),
        *((place, RECOMPUTE) for place in ("take", "bring in", "drop")),
    ],
)
def test_a_fault_of_planning_for_one_sequence_at_any_call(
    place: str, options: SchedulerOptions
) -> None:
    for failed in sweep(FOR_ONE[place], options):
        assert [str(client.error) for client in failed] == ["planning failed: RuntimeError: oops"]


@pytest.mark.parametrize("method", ["_gain", "_pace"])
def test_a_fault_of_planning_for_all_spares_who_is_parked(method: str) -> None:
    counts = [len(failed) for failed in sweep(broken("scheduler._preemption", method), SWAP)]
    assert 0 not in counts
    assert {1, 2} & set(counts)  # of three


@pytest.mark.parametrize("place", ["store.add_cached", "_transfers.copy_ahead"])
def test_a_fault_of_copying_ahead_concerns_nobody(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    part, method = place.split(".")
    for failed in sweep(broken(f"scheduler.{part}", method), AHEAD):
        assert failed == []
    assert "no longer copied ahead" in caplog.text


def test_what_failed_in_planning_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench, clients = pressed(SWAP)
    broken("scheduler._batcher", "_grant")(bench, Once(5))
    failed = run(bench, clients)
    assert f"planning for {failed[0].wanted.request_id} failed" in caplog.text
    assert "RuntimeError: oops" in caplog.text


def test_broken_books_stop_the_loop_also_while_planning() -> None:
    bench, clients = pressed(SWAP)

    def find_a_leak(*args: object) -> None:
        raise InvariantViolation("a page is missing")

    bench.scheduler._batcher._grant = find_a_leak  # type: ignore[method-assign,assignment]  # to break it
    bench.run(*clients)
    assert isinstance(bench.loop.failure, InvariantViolation)
    assert {str(client.error) for client in clients} == {"a page is missing"}
