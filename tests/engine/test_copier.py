"""The copier: its order, its pace, and that nobody waits for it but `close`."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from typing_extensions import override

from kvalet.core.plan import AnyTransfer, Direction, HostId, PageId, Transfer, TransferId
from kvalet.engine.ggml.copier import PACE_PAGES, Copier, Forget, News
from kvalet.engine.ggml.copies import Copies, Pages
from kvalet.errors import EngineError, EngineFatal

PATIENCE_S = 20.0


@dataclass
class Recorder(Copies):
    """Copies nothing and writes down what it would have done. `gate` is waited for in the middle of
    each page."""

    did: list[str] = field(default_factory=list[str])
    gate: Event = field(default_factory=Event)
    cost: int = 1
    error: Exception | None = None
    now: float = 0.0  # a second later after each page
    closed: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.gate.set()

    @override
    def run(self, transfer: AnyTransfer) -> Pages:
        assert isinstance(transfer, Transfer)
        for page, _ in transfer.moves:
            yield self.cost
            self.did.append(f"begin {page}")
            assert self.gate.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
            self.now += 1
            self.did.append(f"end {page}")

    @override
    def forget(self, hosts: Iterable[HostId]) -> None:
        self.did.append(f"forget {[host.place for host in hosts]}")

    @override
    def close(self) -> None:
        self.closed.set()

    @property
    def num_copied(self) -> int:
        return sum(what.startswith("end") for what in self.did)


@pytest.fixture
def copies() -> Recorder:
    return Recorder()


@pytest.fixture
def copier(copies: Recorder) -> Iterator[Copier]:
    made = Copier(copies, asynchronous=True)
    yield made
    copies.gate.set()
    made.close()


def transfer(number: int, *pages: int) -> Transfer:
    moves = tuple((PageId(page), HostId(page)) for page in pages)
    return Transfer(TransferId(number), None, Direction.OUT, moves)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def take_until(copier: Copier, is_enough: Callable[[News], bool]) -> News:
    news = News()

    def took_enough() -> bool:
        more = copier.take()
        news.landed += more.landed
        news.failed.update(more.failed)
        news.busy_s += more.busy_s
        return is_enough(news)

    wait_until(took_enough)
    return news


def until_over(copier: Copier, count: int) -> News:
    return take_until(copier, lambda news: len(news.landed) + len(news.failed) == count)


def until_busy(copier: Copier, seconds: float) -> News:
    return take_until(copier, lambda news: news.busy_s >= seconds)


def test_work_is_done_in_the_order_in_which_it_was_handed_over(
    copier: Copier, copies: Recorder
) -> None:
    copier.start([transfer(3, 1, 2), Forget((HostId(1), HostId(2)))])
    copier.start([transfer(1), transfer(2, 1)])
    assert until_over(copier, 3).landed == [3, 1, 2]
    pages = [f"{what} {page}" for page in (1, 2) for what in ("begin", "end")]
    assert copies.did == [*pages, "forget [1, 2]", "begin 1", "end 1"]


def test_beside_steps_that_compute_it_keeps_a_pace(copier: Copier, copies: Recorder) -> None:
    """What a step leaves of its credit is not the next one's, and nobody to disturb is no pace."""
    for _ in range(3):
        copier.pace(is_computing=True)
    copier.start([transfer(1, *range(100))])
    for steps in (1, 2, 3):
        wait_until(lambda: copies.num_copied >= PACE_PAGES * steps)  # noqa: B023  # done at once
        assert copies.num_copied == PACE_PAGES * steps
        assert not copier.take().landed
        copier.pace(is_computing=True)
    copier.pace(is_computing=False)
    assert until_over(copier, 1).landed == [1]
    copier.pace(is_computing=True)
    copier.start([transfer(2, *range(100))])
    wait_until(lambda: copies.num_copied >= 100 + PACE_PAGES)
    assert copies.num_copied == 100 + PACE_PAGES


def test_pages_that_cost_more_take_more_steps(copier: Copier, copies: Recorder) -> None:
    copies.cost = PACE_PAGES // 2 + 1
    copier.pace(is_computing=True)
    copier.start([transfer(1, *range(3))])
    for steps in (1, 2, 3):
        wait_until(lambda: copies.num_copied >= steps)  # noqa: B023  # done at once
        assert copies.num_copied == steps
        copier.pace(is_computing=True)
    assert until_over(copier, 1).landed == [1]


def test_a_transfer_lands_without_credit_for_another_page(copier: Copier) -> None:
    copier.pace(is_computing=True)
    copier.start([transfer(1, *range(PACE_PAGES)), transfer(2)])
    assert until_over(copier, 2).landed == [1, 2]


def test_nobody_waits_for_a_page(copier: Copier, copies: Recorder) -> None:
    copies.gate.clear()
    copier.start([transfer(1, 1, 2)])
    wait_until(lambda: copies.did == ["begin 1"])
    copier.pace(is_computing=True)
    copier.start([transfer(2)])
    assert copier.take().landed == []
    copies.gate.set()
    assert until_over(copier, 2).landed == [1, 2]


def test_the_time_of_copies_is_told_once_and_that_of_waiting_never(
    copier: Copier, copies: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter=lambda: copies.now)
    monkeypatch.setattr("kvalet.engine.ggml.copier.time", clock)
    copier.pace(is_computing=True)
    copier.start([transfer(1, *range(PACE_PAGES + 2))])
    assert until_busy(copier, PACE_PAGES).landed == []
    copies.now += 1000
    copier.pace(is_computing=True)
    news = until_busy(copier, 2)
    assert (news.landed, news.busy_s) == ([1], 2)
    assert copier.take() == News()


def test_an_engine_error_fails_its_transfer_alone(copier: Copier, copies: Recorder) -> None:
    copies.error = EngineError("no memory")
    copier.start([transfer(1, 1), transfer(2)])
    news = until_over(copier, 2)
    assert (news.landed, news.failed) == ([2], {1: "no memory"})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_any_other_error_is_fatal(copies: Recorder, asynchronous: bool) -> None:
    copies.error = ZeroDivisionError("our bug")
    copier = Copier(copies, asynchronous=asynchronous)
    copier.start([transfer(1, 1), transfer(2)])

    def has_stopped() -> bool:
        try:
            return bool(copier.take().landed)
        except EngineFatal as error:
            assert "ZeroDivisionError: our bug" in str(error)  # noqa: PT017  # raised at some time
            return True

    wait_until(has_stopped)
    with pytest.raises(EngineFatal):
        copier.take()
    copier.close()


def test_close_waits_for_the_page_being_copied_and_drops_the_rest(copies: Recorder) -> None:
    copier = Copier(copies, asynchronous=True)
    copies.gate.clear()
    copier.start([transfer(1, 1, 2), transfer(2, 3), Forget((HostId(1),))])
    wait_until(lambda: copies.did == ["begin 1"])
    closing = Thread(target=copier.close)
    closing.start()
    wait_until(lambda: copier._is_closed)
    assert not copies.closed.is_set()
    copies.gate.set()
    closing.join(PATIENCE_S)
    assert copies.closed.is_set()
    assert copies.did == ["begin 1", "end 1"]
    copier.close()


def test_close_does_not_wait_for_credit(copies: Recorder) -> None:
    copier = Copier(copies, asynchronous=True)
    copier.pace(is_computing=True)
    copier.start([transfer(1, *range(100))])
    wait_until(lambda: copies.num_copied == PACE_PAGES)
    copier.close()
    assert copies.num_copied == PACE_PAGES


def test_without_a_thread_everything_lands_at_once(copies: Recorder) -> None:
    before = threading.active_count()
    copier = Copier(copies, asynchronous=False)
    copier.pace(is_computing=True)
    copier.start([transfer(1, *range(100)), transfer(2)])
    assert threading.active_count() == before
    assert copier.take().landed == [1, 2]
    copier.close()
