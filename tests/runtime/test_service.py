"""The engine thread from outside: real threads, no sleeps."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from tests.builders import make_config
from tests.runtime.clients import LETTERS, Client, generation, letters, solo_tokens
from typing_extensions import override

from kvalet.core.plan import SeqId, StepPlan
from kvalet.core.request import Request
from kvalet.engine.fake import FakeEngine, Faults
from kvalet.errors import Conflict, ContextExceeded, EngineFatal, NotFound, Overloaded, RequestError
from kvalet.runtime.messages import Event
from kvalet.runtime.service import Service

TIMEOUT_S = 10  # of a wait that only a bug lets run out
N_CTX = 512
CONFIG = make_config(num_slots=2, n_ctx=N_CTX, max_queue=6)


class ClosableEngine(FakeEngine):
    is_closed = False

    @override
    def close(self) -> None:
        self.is_closed = True


def make_service(
    execute: Callable[[StepPlan], Exception | None] = lambda plan: None,
    on_death: Callable[[str], None] = lambda reason: None,
) -> Service:
    engine = FakeEngine(num_pages=N_CTX // 32, faults=Faults(execute=execute))
    return Service(engine, CONFIG, LETTERS, on_death=on_death, check_every_step=True)


@contextmanager
def running(service: Service) -> Iterator[Service]:
    service.start()
    try:
        yield service
    finally:
        assert service.close(timeout_s=TIMEOUT_S)


class Gate:
    """Holds the engine thread inside a step until opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.reached.set()
        assert self._open.wait(TIMEOUT_S)

    def open(self) -> None:
        self._open.set()


def test_requests_from_many_threads_get_the_text_they_have_alone() -> None:
    clients = [Client(generation(salt, max_new_tokens=200)) for salt in range(8)]
    with running(make_service()) as service, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda client: service.submit(client.wanted, client), clients))
        assert all(client.ended.wait(TIMEOUT_S) for client in clients)
        shot = service.snapshot().result(TIMEOUT_S)
    assert sorted(ids) == list(range(1, 9))
    assert shot.counters["tokens_predicted_total"] == 8 * 200
    for client in clients:
        assert client.text == letters(solo_tokens(client.wanted, N_CTX))


@pytest.mark.parametrize(
    ("wanted", "error", "field"),
    [
        (generation(num_prompt=0), RequestError, "prompt"),
        (generation(num_prompt=N_CTX), ContextExceeded, "prompt"),
        (generation(id_slot=2), RequestError, "id_slot"),
        (generation(id_slot=-1), RequestError, "id_slot"),
    ],
)
def test_what_is_wrong_on_its_face_is_refused_by_name(
    wanted: Request, error: type[RequestError], field: str
) -> None:
    with running(make_service()) as service, pytest.raises(error) as caught:
        service.submit(wanted, Client())
    assert caught.value.field == field


def test_a_full_queue_refuses_and_a_cancel_makes_room() -> None:
    gate, last = Gate(), Client()
    with running(make_service(gate)) as service:
        ids = [service.submit(generation(salt), Client()) for salt in range(8)]
        assert gate.reached.wait(TIMEOUT_S)
        with pytest.raises(Overloaded):
            service.submit(generation(), last)
        service.cancel(ids[0])
        gate.open()
        service.snapshot().result(TIMEOUT_S)  # read after the cancel
        service.submit(generation(), last)
        assert last.ended.wait(TIMEOUT_S)


def test_room_comes_back_after_every_end() -> None:
    with running(make_service()) as service:
        for _ in range(3 * (service.num_slots + service.max_queue)):
            client = Client(generation(max_new_tokens=1))
            service.submit(client.wanted, client)
            assert client.ended.wait(TIMEOUT_S)


def test_a_family_is_taken_whole_or_not_at_all() -> None:
    gate, clients = Gate(), [Client(generation(1)) for _ in range(3)]
    wanted = [client.wanted for client in clients]
    with running(make_service(gate)) as service:
        service.submit(generation(), Client())
        assert gate.reached.wait(TIMEOUT_S)
        with pytest.raises(ContextExceeded):
            service.submit_all([*wanted, generation(num_prompt=N_CTX)], [*clients, Client()])
        ids = service.submit_all(wanted, clients)
        gate.open()
        assert all(client.ended.wait(TIMEOUT_S) for client in clients)
    assert ids == [ids[0], ids[0] + 1, ids[0] + 2]
    assert all(client.finished.num_tokens == 50 for client in clients)


def test_a_family_counts_once_until_the_last_of_it_is_over() -> None:
    gate, wanted = Gate(), [generation()] * 20

    def submit() -> list[SeqId]:
        return service.submit_all(wanted, [Client() for _ in wanted])

    with running(make_service(gate)) as service:
        first = submit()
        assert gate.reached.wait(TIMEOUT_S)
        others = [submit() for _ in range(7)]
        with pytest.raises(Overloaded):
            submit()
        for seq_id in [*first[:-1], *itertools.chain(*others)]:
            service.cancel(seq_id)
        gate.open()
        service.snapshot().result(TIMEOUT_S)  # read after the cancels
        submit()


def test_a_slot_is_parked_and_resumed_from_outside() -> None:
    reached, client = threading.Event(), Client(generation(max_new_tokens=300))
    client.each = lambda events: reached.set()
    with running(make_service()) as service:
        with pytest.raises(NotFound):
            service.park(2, timeout_s=60).result(TIMEOUT_S)
        service.submit(client.wanted, client)
        assert reached.wait(TIMEOUT_S)
        with pytest.raises(Conflict):
            service.park(0, 60, "request-2").result(TIMEOUT_S)
        assert service.park(0, 60, "request-1").result(TIMEOUT_S).is_held
        assert service.snapshot().result(TIMEOUT_S).slots[0].is_held
        assert not client.ended.is_set()
        assert not service.resume(0, "request-1").result(TIMEOUT_S).is_held
        assert client.ended.wait(TIMEOUT_S)
    with pytest.raises(Overloaded):
        service.resume(0).result(TIMEOUT_S)


def test_a_chat_parked_on_request_comes_back_when_its_time_is_over() -> None:
    client = Client(generation(max_new_tokens=300))
    reached = threading.Event()
    client.each = lambda events: reached.set()
    with running(make_service()) as service:
        service.submit(client.wanted, client)
        assert reached.wait(TIMEOUT_S)
        service.park(0, timeout_s=0.01).result(TIMEOUT_S)
        assert client.ended.wait(TIMEOUT_S)
    assert client.finished.timings.n_preempt == 1


def test_close_tells_running_and_queued_chats_and_refuses_new_ones() -> None:
    gate, clients = Gate(), [Client(generation(salt)) for salt in range(4)]
    service = make_service(gate)
    service.start()
    for client in clients:
        service.submit(client.wanted, client)
    assert gate.reached.wait(TIMEOUT_S)
    assert not service.close("going home", timeout_s=0)  # the step under way is not cut short
    with pytest.raises(Overloaded, match="going home"):
        service.submit(generation(), Client())
    gate.open()
    assert service.close(timeout_s=TIMEOUT_S)
    assert {str(client.error) for client in clients} == {"going home"}
    assert all(isinstance(client.error, Overloaded) for client in clients)
    assert (service.alive, service.failure) == (False, None)
    with pytest.raises(Overloaded):
        service.snapshot().result(TIMEOUT_S)


def test_close_without_start_closes_the_engine_too() -> None:
    engine, client = ClosableEngine(num_pages=N_CTX // 32), Client()
    service = Service(engine, CONFIG, LETTERS)
    assert not service.alive
    service.submit(client.wanted, client)
    assert service.close()
    assert service.close()
    assert engine.is_closed
    assert isinstance(client.error, Overloaded)


def test_the_death_of_the_thread_is_told_once_every_client_knows() -> None:
    told: list[tuple[str, bool, bool]] = []
    dead, client = threading.Event(), Client()

    def on_death(reason: str) -> None:
        told.append((reason, client.ended.is_set(), service.alive))
        dead.set()

    service = make_service(lambda plan: EngineFatal("the device is gone"), on_death)
    with running(service):
        assert service.alive
        service.submit(client.wanted, client)
        assert dead.wait(TIMEOUT_S)
        assert told == [("the device is gone", True, False)]
        assert service.failure == "the device is gone"
        with pytest.raises(Overloaded, match="device is gone"):
            service.submit(generation(), Client())


def test_a_sink_may_call_the_service() -> None:
    """A client that gives up at its first token, and one that asks again at its end."""
    second = Client(generation(2))

    def give_up(events: Sequence[Event]) -> None:
        service.cancel(seq_id)
        service.submit(second.wanted, second)

    gate = Gate()
    with running(make_service(gate)) as service:
        first = Client(generation(1), each=give_up)
        seq_id = service.submit(first.wanted, first)
        gate.open()
        assert second.ended.wait(TIMEOUT_S)
    assert len(first.calls) == 1
