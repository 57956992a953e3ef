"""Parking and resuming on request (SPEC P14), through the loop."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import pytest
from tests.runtime.clients import Bench, Client, check_story, generation, letters, solo_tokens

from kvalet.core.plan import StepPlan
from kvalet.errors import Conflict, EngineFatal, KvaletError, NotFound
from kvalet.runtime.loop import HELD_POLL_S
from kvalet.runtime.messages import Event, Finished, Preempted, SlotView


def at_steps(bench: Bench, actions: Mapping[int, Callable[[], object]]) -> list[object]:
    """Ask something of the bench while it computes those steps; the answers, in order."""
    answers: list[object] = []

    def act(plan: StepPlan) -> None:
        if plan.step in actions:
            answers.append(actions[plan.step]())

    bench.before_step = act
    return answers


def view(answer: object) -> SlotView:
    assert isinstance(answer, Future)
    found = answer.result(timeout=0)
    assert isinstance(found, SlotView)
    return found


def error(answer: object) -> KvaletError:
    assert isinstance(answer, Future)
    found = answer.exception(timeout=0)
    assert isinstance(found, KvaletError)
    return found


def test_a_chat_parked_on_request_is_away_until_it_is_resumed() -> None:
    bench, clients = Bench(), [Client(generation(salt)) for salt in (1, 2)]
    answers = at_steps(
        bench,
        {
            10: lambda: bench.park(0, "request-1"),
            20: bench.snapshot,
            80: lambda: bench.resume(0, "request-1"),
        },
    )
    bench.run(*clients)
    parked, shot, resumed = answers
    assert (view(parked).state, view(parked).is_held) == ("decode", True)  # accepted, not done
    assert isinstance(shot, Future)
    slot = shot.result(timeout=0).slots[0]
    assert (slot.state, slot.is_held, slot.is_preempted) == ("preempted", True, True)
    assert (slot.preempt_mode, slot.n_cells) == ("swap", 0)
    assert view(resumed).is_held is False
    for client in clients:
        assert client.text == letters(solo_tokens(client.wanted, bench.n_ctx))
        check_story(client)
    assert (clients[0].count(Preempted), clients[1].count(Preempted)) == (1, 0)
    assert clients[0].finished.timings.parked_ms == 71_000.0  # steps 11 to 81


@pytest.mark.parametrize(
    ("ask", "expected", "words"),
    [
        (lambda bench: bench.park(4), NotFound, "no slot 4"),
        (lambda bench: bench.park(-1), NotFound, "no slot -1"),
        (lambda bench: bench.resume(4), NotFound, "no slot 4"),
        (lambda bench: bench.park(0, "request-2"), Conflict, "request-2"),
        (lambda bench: bench.resume(0, "request-2"), Conflict, "request-2"),
        (lambda bench: bench.resume(0), Conflict, "it is decode"),
        (lambda bench: bench.park(1), Conflict, "nothing to park"),
        (lambda bench: bench.resume(1), Conflict, "nothing of it is parked"),
        (lambda bench: bench.park(1, "request-1"), Conflict, "request-1"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    ask: Callable[[Bench], object], expected: type[KvaletError], words: str
) -> None:
    bench, client = Bench(), Client(generation(1))
    answers = at_steps(bench, {10: lambda: ask(bench)})
    bench.run(client)
    assert isinstance(error(answers[0]), expected)
    assert words in str(error(answers[0]))
    assert (client.finished.num_tokens, client.count(Preempted)) == (50, 0)


def test_a_parked_chat_cannot_be_parked_again() -> None:
    bench, client = Bench(), Client(generation(1))
    actions = {10: lambda: bench.park(0), 15: lambda: bench.park(0), 20: lambda: bench.resume(0)}
    answers = at_steps(bench, actions)
    bench.run(client)
    assert "it is preempted" in str(error(answers[1]))
    assert client.finished.num_tokens == 50


def test_an_idle_slot_answers_to_its_last_request() -> None:
    bench = Bench(num_slots=2)
    short, long = Client(generation(1, max_new_tokens=40)), Client(generation(2, max_new_tokens=90))
    answers = at_steps(
        bench,
        {
            60: lambda: bench.park(0, "request-1"),
            65: bench.snapshot,
            70: lambda: bench.resume(0, "request-1"),
            75: bench.snapshot,
        },
    )
    bench.run(short, long)
    parked, kept, resumed, back = answers
    assert (view(parked).state, view(parked).is_held) == ("idle", True)
    assert view(resumed).is_held is False
    assert isinstance(kept, Future)
    assert isinstance(back, Future)
    assert kept.result(0).gauges["preempt_ram_bytes"] == 2 * 128  # whole pages of 79 cells
    assert kept.result(0).gauges["kv_cells_cached"] == 0
    assert back.result(0).gauges["preempt_ram_bytes"] == 0
    assert back.result(0).gauges["kv_cells_cached"] == 2 * 32


def test_what_an_idle_slot_left_is_let_go_in_time_with_nobody_about() -> None:
    bench = Bench()

    def park_at_the_end(events: Sequence[Event]) -> None:
        if isinstance(events[-1], Finished):
            bench.park(0, timeout_s=25.0)

    bench.run(Client(each=park_at_the_end))
    assert bench.scheduler.store.num_held == 0
    assert bench.now == 51 - 1 + 25 + 1  # counted from the start of step 51
    assert bench.inbox.patience.count(HELD_POLL_S) >= 20


def test_a_question_that_dies_with_the_loop_is_answered() -> None:
    bench = Bench()
    answers: list[object] = []

    def ask_and_die(plan: StepPlan) -> Exception:
        answers.extend([bench.park(0), bench.resume(0)])
        return EngineFatal("gone")

    bench.before_step = ask_and_die
    bench.run(Client())
    assert [str(error(answer)) for answer in answers] == ["gone", "gone"]
