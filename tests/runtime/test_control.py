"""Parking and resuming on request (behaviour P14), through the loop."""

import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import pytest
from tests.runtime.clients import Bench, Client, check_story, generation, letters, solo_tokens

from kvalet.core.plan import StepPlan
from kvalet.engine.fake import UNUSED, StateFile
from kvalet.engine.host.statefile import file_bytes
from kvalet.errors import (
    Conflict,
    EngineError,
    EngineFatal,
    KvaletError,
    NotFound,
    Overloaded,
    StateFileError,
)
from kvalet.runtime.inbox import Stop
from kvalet.runtime.loop import HELD_POLL_S
from kvalet.runtime.messages import Event, Finished, Preempted, SlotState, SlotView


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
    assert (view(parked).preempt_mode, view(parked).n_cells_host) == ("swap", 2 * 32)
    assert view(resumed).is_held is False
    assert isinstance(kept, Future)
    assert isinstance(back, Future)
    gone = back.result(0).slots[0]
    assert (gone.is_held, gone.preempt_mode, gone.n_cells_host) == (False, None, 0)
    assert kept.result(0).gauges["preempt_ram_bytes"] == 2 * 128  # whole pages of 79 cells
    assert kept.result(0).gauges["kv_cells_cached"] == 0
    assert back.result(0).gauges["preempt_ram_bytes"] == 0
    assert back.result(0).gauges["kv_cells_cached"] == 2 * 32


def test_what_an_idle_slot_left_is_let_go_in_time_without_any_request() -> None:
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


def chat_of_70(bench: Bench, seq_id: int) -> Client:
    client = Client(generation(1, num_prompt=70))
    bench.submit(client, seq_id)
    bench.settle()
    return client


@pytest.mark.parametrize("transfer_steps", [0, 2])
def test_a_slot_is_saved_erased_and_restored_through_the_loop(transfer_steps: int) -> None:
    bench = Bench(transfer_steps=transfer_steps)
    first = chat_of_70(bench, 1)
    saved = bench.save(0, "state", "request-1")
    bench.settle()
    state = saved.result(timeout=0)
    assert (state.num_tokens, state.num_bytes) == (96, file_bytes(96, bench.engine.info.page_bytes))
    erased = bench.erase(0)
    bench.settle()
    assert erased.result(timeout=0).num_tokens == 96
    assert bench.scheduler.pool.num_cached == 0
    known = (*first.wanted.prompt, *solo_tokens(first.wanted, bench.n_ctx))
    restored = bench.restore(0, "state", known[:96])
    bench.settle()
    assert restored.result(timeout=0).num_tokens == 96
    again = chat_of_70(bench, 2)
    assert (again.finished.timings.cache_n, again.text) == (64, first.text)


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "no state file"), (400, "damaged"), (400, "replaced"), (500, "Input/output error")],
)
def test_a_restore_that_fails_says_whose_fault_it_is(status: int, words: str) -> None:
    bench = Bench(transfer_steps=2)
    tokens = tuple(range(32))
    held, page = (tokens[::-1] if words == "replaced" else tokens), UNUSED
    if status != 404:
        bench.engine.files["state"] = StateFile(held, ((page,) * 32,))
    if status == 500:
        bench.faults.file = lambda transfer: "state file state: Input/output error"
    answers = [bench.restore(slot, "state", tokens) for slot in range(2)]
    bench.settle()
    for answer in answers:  # all who ask for a file are told
        refused = error(answer)
        assert (refused.status, words in str(refused)) == (status, True)
        assert isinstance(refused, EngineError if status == 500 else StateFileError)
        if isinstance(refused, StateFileError):
            assert refused.field == "filename"
    assert bench.scheduler.store.num_held == 0


def test_a_file_that_cannot_be_written_is_the_server_s_error() -> None:
    bench = Bench()
    chat_of_70(bench, 1)
    bench.faults.file = lambda transfer: "No space left"
    saved = bench.save(0, "state")
    bench.settle()
    refused = error(saved)
    assert type(refused) is EngineError
    assert "No space" in str(refused)


def test_a_question_that_ends_the_loop_is_answered_too() -> None:
    bench = Bench()
    answer = bench.restore(0, "state", (2**31,) * 32)
    with pytest.raises(struct.error):
        bench.settle()
    assert isinstance(answer.exception(timeout=0), struct.error)


@pytest.mark.parametrize("ask", [lambda bench: bench.save(0, "a"), lambda bench: bench.erase(0)])
def test_an_empty_slot_has_nothing_to_save_or_erase(
    ask: Callable[[Bench], Future[SlotState]],
) -> None:
    bench = Bench()
    answer = ask(bench)
    bench.settle()
    assert isinstance(error(answer), Conflict)


def test_an_order_that_waits_for_a_file_is_refused_when_the_loop_ends() -> None:
    bench = Bench(transfer_steps=1000)
    chat_of_70(bench, 1)
    saved = bench.save(0, "state")
    bench.inbox.put(Stop("enough"))
    bench.loop.run()
    assert isinstance(error(saved), Overloaded)


def test_a_cancelled_order_is_not_carried_out() -> None:
    bench = Bench()
    chat_of_70(bench, 1)
    erased = bench.erase(0)
    assert erased.cancel()
    bench.settle()
    assert bench.scheduler.pool.num_cached > 0
