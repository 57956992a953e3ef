"""The main loop over the real scheduler and the fake engine, on the test's own thread."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest
from tests.builders import GREEDY
from tests.runtime.clients import LETTERS, Bench, Client, generation, letters, solo_tokens

from kvalet.core.plan import FinishReason, StepPlan
from kvalet.errors import EngineError, EngineFatal, InvariantViolation, Overloaded
from kvalet.runtime.loop import HELD_POLL_S, TRANSFER_POLL_S
from kvalet.runtime.messages import Delta, Event, Finished, Preempted, Resumed, SlotView, Snapshot
from kvalet.runtime.stream import Vocabulary


def pressed_clients(count: int = 3) -> list[Client]:
    """Each fits Bench's 512 cells alone, not all together."""
    return [Client(generation(salt, max_new_tokens=200)) for salt in range(1, count + 1)]


@pytest.mark.parametrize("transfer_steps", [0, 3])
def test_pressed_chats_all_end_with_the_text_they_have_alone(transfer_steps: int) -> None:
    bench, clients = Bench(transfer_steps=transfer_steps), pressed_clients()
    bench.run(*clients)
    assert bench.scheduler.counters.n_preempt >= 1
    for client in clients:
        assert client.text == letters(solo_tokens(client.wanted, bench.n_ctx))
        assert (client.finished.reason, client.finished.num_tokens) == (FinishReason.LENGTH, 200)


def test_notices_alternate_and_text_comes_only_between_them() -> None:
    bench, clients = Bench(transfer_steps=2, options={"preempt_every": 20}), pressed_clients()
    bench.run(*clients)
    for client in clients:
        is_parked = False
        for event in client.events:
            assert isinstance(event, Resumed) == is_parked, client.events
            is_parked = isinstance(event, Preempted)
        assert client.finished.timings.n_preempt == client.count(Preempted) >= 6


def test_a_sink_is_called_at_most_once_a_step() -> None:
    bench = Bench()
    steps: list[int] = []
    clients = [Client(generation(1), each=lambda events: steps.append(len(bench.plans)))]
    bench.run(*clients)
    assert steps == sorted(set(steps))
    assert len(steps) == clients[0].count(Delta) == 50


def test_eos_ends_a_sequence_without_text_of_its_own() -> None:
    tokens = solo_tokens(generation(), 512)
    eos = tokens[20]
    first = tokens.index(eos)
    client = Client()
    Bench(vocabulary=replace(LETTERS, eos_ids=frozenset({eos}))).run(client)
    assert client.text == letters(tokens[:first])
    assert client.finished.reason is FinishReason.EOS
    assert client.finished.num_tokens == first + 1


def test_eos_is_a_token_like_any_other_for_a_request_that_ignores_it() -> None:
    eos = solo_tokens(generation(), 512)[20]
    client = Client(generation(ignore_eos=True))
    Bench(vocabulary=replace(LETTERS, eos_ids=frozenset({eos}))).run(client)
    assert client.finished.num_tokens == 50


def test_a_stop_string_across_tokens_ends_a_sequence_and_never_shows() -> None:
    text = letters(solo_tokens(generation(), 512))
    stop = text[10:14]
    client = Client(generation(stop=("no such text", stop)))
    Bench().run(client)
    assert client.text == text[: text.index(stop)]
    assert client.finished.reason is FinishReason.STOP_STRING
    assert client.finished.stopping_word == stop
    assert client.finished.num_tokens == text.index(stop) + len(stop)


def test_what_a_stop_string_might_have_claimed_comes_out_at_the_end() -> None:
    text = letters(solo_tokens(generation(), 512))
    client = Client(generation(stop=(text[-3:] + "never",)))
    Bench().run(client)
    assert client.text == text
    assert client.finished.stopping_word == ""
    assert isinstance(client.calls[-1][0], Delta)
    assert isinstance(client.calls[-1][1], Finished)


def test_a_full_context_is_a_truncated_end() -> None:
    client = Client(generation(max_new_tokens=None))
    bench = Bench(num_pages=4)
    bench.run(client)
    assert (client.finished.reason, client.finished.truncated) == (FinishReason.CONTEXT, True)
    assert len(client.text) == 4 * 32 - 40


def test_tokens_are_reported_on_request_also_when_they_have_no_text() -> None:
    silent = Vocabulary(token_bytes=lambda token: b"", eos_ids=frozenset())
    asked = Client(generation(sampling=replace(GREEDY, logprobs=True)))
    unasked = Client(generation())
    Bench(vocabulary=silent).run(asked, unasked)
    reported = [info.token for e in asked.events if isinstance(e, Delta) for info in e.tokens]
    assert reported == solo_tokens(asked.wanted, 512)
    assert unasked.count(Delta) == 0


def test_a_cancel_takes_effect_before_the_next_plan() -> None:
    bench, others = Bench(), [Client(generation(2)), Client(generation(3))]

    def cancel_itself(events: Sequence[Event]) -> None:
        bench.cancel(1)
        cancelled_after.append(len(bench.plans))

    cancelled_after: list[int] = []
    client = Client(generation(1), each=cancel_itself)
    bench.run(client, *others)
    assert len(client.calls) == 1
    later = bench.plans[cancelled_after[0] :]
    assert later
    assert all(grant.seq_id != 1 for plan in later for grant in plan.grants)
    assert [other.finished.num_tokens for other in others] == [50, 50]


@pytest.mark.parametrize("at_step", [1, 30, 60, 90])
def test_a_cancel_at_any_time_leaves_the_others_alone(at_step: int) -> None:
    bench, clients = Bench(transfer_steps=2, options={"preempt_every": 10}), pressed_clients()

    def cancel_the_second(plan: StepPlan) -> None:
        if plan.step == at_step:
            bench.cancel(2)

    bench.before_step = cancel_the_second
    bench.run(*clients)
    assert not clients[1].ended.is_set()
    for client in (clients[0], clients[2]):
        assert client.text == letters(solo_tokens(client.wanted, bench.n_ctx))
    assert bench.scheduler.pool.num_referenced == 0


def test_a_fault_of_one_sequence_ends_that_one() -> None:
    bench, clients = Bench(), [Client(generation(salt)) for salt in (1, 2)]
    bench.faults.compute = lambda grant: "no luck" if grant.seq_id == 1 else None
    bench.run(*clients)
    assert isinstance(clients[0].error, EngineError)
    assert str(clients[0].error) == "no luck"
    assert clients[1].finished.num_tokens == 50


def test_a_step_that_fails_ends_the_sequences_that_took_part_and_no_others() -> None:
    bench, clients = Bench(num_slots=2), [Client(generation(salt)) for salt in (1, 2, 3)]
    bench.before_step = lambda plan: EngineError("out of luck") if plan.step == 5 else None
    bench.run(*clients)
    assert [str(client.error) for client in clients[:2]] == ["out of luck"] * 2
    assert clients[2].text == letters(solo_tokens(clients[2].wanted, bench.n_ctx))
    assert bench.loop.failure is None


def test_copies_of_a_step_that_failed_do_not_stay_in_flight() -> None:
    bench, clients = Bench(), pressed_clients()

    def fail_the_first_copy(plan: StepPlan) -> Exception | None:
        is_first = plan.transfers and not any(p.transfers for p in bench.plans[:-1])
        return EngineError("copy lost") if is_first else None

    bench.before_step = fail_the_first_copy
    bench.run(*clients)
    failed = [client for client in clients if not isinstance(client.events[-1], Finished)]
    assert [str(client.error) for client in failed] == ["copy lost"] * len(failed)
    assert 1 <= len(failed) < len(clients)
    assert not bench.scheduler.has_work


def fatal(plan: StepPlan) -> Exception | None:
    return EngineFatal("the device is gone") if plan.step == 5 else None


def unexpected(plan: StepPlan) -> Exception | None:
    return ZeroDivisionError("oops") if plan.step == 5 else None


@pytest.mark.parametrize(("fault", "reason"), [(fatal, "device is gone"), (unexpected, "oops")])
def test_what_cannot_be_mended_ends_the_loop_and_tells_every_client(
    fault: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(num_slots=1)
    bench.before_step = fault  # type: ignore[assignment]  # parametrize loses the type
    clients = [Client(generation(salt)) for salt in (1, 2)]
    bench.run(*clients)
    assert all(reason in str(client.error) for client in clients)
    assert all(isinstance(client.error, EngineError) for client in clients)
    assert reason in str(bench.loop.failure)
    assert "StepPlan(step=5" in caplog.text
    with pytest.raises(Overloaded, match=reason):
        bench.submit(Client(generation(9)), 9)


def test_books_that_do_not_add_up_stop_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    bench, client = Bench(), Client()

    def steal_a_page(plan: StepPlan) -> None:
        if plan.step == 7:
            bench.scheduler.pool.take()

    bench.before_step = steal_a_page
    bench.run(client)
    assert isinstance(client.error, InvariantViolation)
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert "StepPlan(step=7" in caplog.text


def test_messages_that_were_never_read_are_answered_too() -> None:
    bench, late = Bench(), Client(generation(2))
    snapshots: list[Future[Snapshot]] = []

    def submit_and_die(plan: StepPlan) -> Exception:
        bench.submit(late, 2)
        snapshots.append(bench.snapshot())
        return EngineFatal("gone")

    bench.before_step = submit_and_die
    bench.run(Client())
    assert isinstance(late.error, EngineFatal)
    assert isinstance(snapshots[0].exception(timeout=0), EngineFatal)


def test_a_broken_sink_costs_its_own_sequence(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(events: Sequence[Event]) -> None:
        raise ConnectionError("nobody there")

    bench = Bench()
    broken, other = Client(generation(1), each=break_down), Client(generation(2))
    bench.run(broken, other)
    assert len(broken.calls) == 1
    assert other.finished.num_tokens == 50
    assert "request-1" in caplog.text


def test_a_request_the_scheduler_refuses_fails_alone() -> None:
    bench = Bench()
    refused, other = Client(generation(1, id_slot=9)), Client(generation(2))
    bench.run(refused, other)
    assert "slot 9" in str(refused.error)
    assert other.finished.num_tokens == 50


def test_times_are_the_requests_own_and_pauses_are_apart() -> None:
    """The bench's clock goes one second a step; prompt and every token take a step each."""
    bench, client = Bench(transfer_steps=1, options={"preempt_every": 10}), Client()
    bench.run(client)
    timings = client.finished.timings
    parked_steps = sum(not plan.grants for plan in bench.plans)
    assert (timings.prompt_n, timings.predicted_n, timings.n_preempt) == (40, 50, 4)
    assert (timings.prompt_ms, timings.predicted_ms) == (1000.0, 49_000.0)
    assert timings.parked_ms == parked_steps * 1000.0 > 0


def test_a_step_with_nothing_but_a_copy_under_way_waits_a_moment() -> None:
    bench = Bench(transfer_steps=4, options={"preempt_every": 10})
    bench.run(Client())
    assert set(bench.inbox.patience) == {None, 0, TRANSFER_POLL_S}  # None: before anybody asked


def test_when_all_wait_for_a_resume_the_loop_looks_at_the_time_now_and_then() -> None:
    bench = Bench()

    def park_then_resume(plan: StepPlan) -> None:
        if plan.step == 10:
            bench.park(0)
        if plan.step == 30:
            bench.resume(0)

    bench.before_step = park_then_resume
    client = Client()
    bench.run(client)
    assert client.text == letters(solo_tokens(client.wanted, bench.n_ctx))
    assert bench.inbox.patience.count(HELD_POLL_S) == 19  # steps 12 to 30 brought nothing


def test_a_snapshot_shows_running_and_parked_chats() -> None:
    bench, snapshots = Bench(), list[Future[Snapshot]]()

    def look_when_parked(events: Sequence[Event]) -> None:
        if isinstance(events[-1], Preempted):
            snapshots.append(bench.snapshot())

    clients = pressed_clients()
    for client in clients:
        client.each = look_when_parked
    bench.run(*clients)
    shot = snapshots[0].result(timeout=0)
    assert [view.state for view in shot.slots] == ["decode", "decode", "preempted", "idle"]
    assert [view.is_preempted for view in shot.slots] == [False, False, True, False]
    assert shot.slots[2].parked_ms > 0
    assert shot.gauges["requests_processing"] == 2
    assert shot.gauges["requests_preempted"] == shot.gauges["requests_waiting"] == 1
    assert shot.gauges["kv_cells_used"] == sum(view.n_cells for view in shot.slots)
    assert shot.counters["n_preempt_total"] == 1
    assert shot.counters["preempt_bytes_out_total"] == shot.gauges["preempt_ram_bytes"] > 0


def test_totals_add_up_and_gauges_go_back_to_zero() -> None:
    bench = Bench()
    bench.run(*(Client(generation(salt, max_new_tokens=50 + salt)) for salt in (1, 2, 3)))
    shot = bench.at_the_end.result(timeout=0)
    assert shot.counters["prompt_tokens_total"] == 3 * 40
    assert shot.counters["tokens_predicted_total"] == 51 + 52 + 53
    assert shot.counters["n_busy_slots_total"] == sum(len(plan.grants) for plan in bench.plans)
    assert shot.counters["n_decode_total"] == len(bench.plans)
    assert shot.counters["step_seconds_total"] == len(bench.plans)
    busy = ("requests_processing", "requests_deferred", "requests_preempted", "requests_waiting")
    held = ("kv_cells_used", "preempt_ram_bytes", "host_store_bytes")
    assert all(shot.gauges[name] == 0 for name in (*busy, *held))
    assert shot.slots == tuple(SlotView(slot) for slot in range(4))
