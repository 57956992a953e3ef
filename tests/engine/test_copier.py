"""The copier: its order, its pace, and that nobody waits for it but `close`."""

import logging
import threading
from collections.abc import Callable, Iterator
from threading import Thread
from types import SimpleNamespace

import pytest

from kvalet.core.plan import (
    AnyTransfer,
    Direction,
    Fault,
    HostId,
    PageId,
    StateLoad,
    StateSave,
    Transfer,
    TransferId,
)
from kvalet.engine.base import PACE_DEBT, PACE_SHARE
from kvalet.engine.host.copier import Copier, Forget, News
from kvalet.errors import EngineError, EngineFatal
from tests.engine.recorder import PATIENCE_S, Recorder, wait_until


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    clock = SimpleNamespace(perf_counter=lambda: recorder.now)
    monkeypatch.setattr("kvalet.engine.host.copier.time", clock)
    return recorder


@pytest.fixture
def copier(moves: Recorder) -> Iterator[Copier]:
    made = Copier(moves, asynchronous=True)
    yield made
    moves.gate.set()
    made.close()


def transfer(number: int, *pages: int) -> Transfer:
    moves = tuple((PageId(page), HostId(page)) for page in pages)
    return Transfer(TransferId(number), None, Direction.OUT, moves)


def save(number: int, *pages: int) -> StateSave:
    return StateSave(TransferId(number), "state", (), tuple(map(PageId, pages)))


def load(number: int, *pages: int) -> StateLoad:
    moves = tuple((page, HostId(page)) for page in pages)
    return StateLoad(TransferId(number), "state", (), moves)


def step_for(seconds: float) -> float:
    """How long a step is beside which the copier may be busy for `seconds`."""
    return seconds / PACE_SHARE


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
    copier: Copier, moves: Recorder
) -> None:
    copier.start([transfer(3, 1, 2), Forget((HostId(1), HostId(2)))])
    copier.start([transfer(1), transfer(2, 1)])
    assert until_over(copier, 3).landed == [3, 1, 2]
    pages = [f"{what} {page}" for page in (1, 2) for what in ("begin", "end")]
    assert moves.did == [*pages, "forget [1, 2]", "begin 1", "end 1"]


def test_files_wait_for_all_else(copier: Copier, moves: Recorder) -> None:
    moves.gate.clear()
    copier.start([transfer(1, 1)])
    copier.start([save(2, 10), load(3, 20), transfer(4, 2), Forget((HostId(5),)), transfer(5, 3)])
    moves.gate.set()
    assert until_over(copier, 5).landed == [1, 4, 5, 2, 3]
    assert moves.order == ["1", "2", "forget [5]", "3", "10", "20"]


@pytest.mark.parametrize("make", [save, load])
def test_a_file_makes_way_between_two_of_its_pages(
    copier: Copier, moves: Recorder, make: Callable[..., AnyTransfer]
) -> None:
    moves.errors[2] = EngineError("no memory")
    moves.gate.clear()
    copier.start([make(1, 10, 11)])
    wait_until(lambda: moves.did == ["begin 10"])
    copier.start([transfer(2, 1), Forget((HostId(5),)), transfer(3, 2), transfer(4)])
    moves.gate.set()
    news = until_over(copier, 4)
    assert (news.landed, news.failed) == ([2, 4, 1], {3: Fault("no memory")})
    assert moves.order == ["10", "1", "forget [5]", "11"]


def test_a_file_that_waits_for_credit_is_in_nobody_s_way(copier: Copier, moves: Recorder) -> None:
    copier.pace(step_for(1))
    copier.start([save(1, *range(10, 74))])
    until_busy(copier, 1)
    copier.start([transfer(2)])  # nothing to copy: no credit is needed
    assert until_over(copier, 1).landed == [2]
    copier.start([transfer(3, 1)])
    copier.pace(step_for(1))
    assert until_over(copier, 1).landed == [3]
    assert moves.order == ["10", "1"]


def test_beside_steps_that_compute_it_keeps_a_pace(copier: Copier, moves: Recorder) -> None:
    """What a step leaves of its credit is not the next one's, and nobody to disturb is no pace."""
    for _ in range(3):
        copier.pace(step_for(8))
    copier.start([transfer(1, *range(100))])
    for steps in (1, 2, 3):
        assert until_busy(copier, 8).landed == []
        assert moves.num_copied == 8 * steps
        copier.pace(step_for(8))
    copier.pace(None)
    assert until_over(copier, 1).landed == [1]
    copier.pace(step_for(8))
    copier.start([transfer(2, *range(100))])
    until_busy(copier, 8)
    assert moves.num_copied == 100 + 8


def test_credit_that_was_overdrawn_is_owed(copier: Copier, moves: Recorder) -> None:
    """A page is copied whole, though it takes longer than there is credit for."""
    moves.page_s = 3
    copier.pace(step_for(2))
    copier.start([save(1, *range(4))])
    until_busy(copier, 3)
    copier.pace(step_for(2))
    until_busy(copier, 3)
    copier.pace(step_for(2))
    pass_time(copier)
    assert moves.num_copied == 2
    copier.pace(step_for(2))
    until_busy(copier, 3)
    assert moves.num_copied == 3


def test_a_page_that_took_very_long_does_not_hold_the_next_for_ever(
    copier: Copier, moves: Recorder
) -> None:
    moves.page_s = 1000
    copier.pace(step_for(1))
    copier.start([save(1, *range(4))])
    until_busy(copier, 1000)
    for _ in range(PACE_DEBT):
        copier.pace(step_for(1))
    pass_time(copier)
    assert moves.num_copied == 1
    copier.pace(step_for(1))
    until_busy(copier, 1000)
    assert moves.num_copied == 2


def pass_time(copier: Copier) -> None:
    """Enough for a page, if there were credit for it."""
    for number in range(100, 110):
        copier.start([transfer(number)])
        until_over(copier, 1)


def test_what_is_owed_is_forgiven_when_nobody_computes(copier: Copier, moves: Recorder) -> None:
    moves.page_s = 100
    copier.pace(step_for(1))
    copier.start([transfer(1, 1)])
    until_over(copier, 1)
    copier.pace(None)
    copier.pace(step_for(1))
    copier.start([transfer(2, 2)])
    assert until_over(copier, 1).landed == [2]


def test_a_transfer_lands_without_credit_for_another_page(copier: Copier) -> None:
    copier.pace(step_for(8))
    copier.start([transfer(1, *range(8)), transfer(2)])
    assert until_over(copier, 2).landed == [1, 2]


def test_nobody_waits_for_a_page(copier: Copier, moves: Recorder) -> None:
    moves.gate.clear()
    copier.start([transfer(1, 1, 2)])
    wait_until(lambda: moves.did == ["begin 1"])
    copier.pace(step_for(10))
    copier.start([transfer(2)])
    assert copier.take().landed == []
    moves.gate.set()
    assert until_over(copier, 2).landed == [1, 2]


def test_the_time_of_copies_is_told_once_and_that_of_waiting_never(
    copier: Copier, moves: Recorder
) -> None:
    copier.pace(step_for(8))
    copier.start([transfer(1, *range(10))])
    assert until_busy(copier, 8).landed == []
    moves.now += 1000
    copier.pace(step_for(8))
    news = until_busy(copier, 2)
    assert (news.landed, news.busy_s) == ([1], 2)
    assert copier.take() == News()


def test_an_engine_error_fails_its_transfer_alone(copier: Copier, moves: Recorder) -> None:
    moves.errors[1] = EngineError("no memory")
    copier.start([transfer(1, 1), transfer(2)])
    news = until_over(copier, 2)
    assert (news.landed, news.failed) == ([2], {1: Fault("no memory")})


def test_the_operator_is_told_why_a_transfer_failed(
    copier: Copier, moves: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    moves.errors[1] = EngineError("no memory")
    copier.start([transfer(number, 1) for number in range(5)])
    until_over(copier, 5)
    assert caplog.record_tuples == [("kvalet.engine", logging.WARNING, "a copy failed: no memory")]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_any_other_error_is_fatal(moves: Recorder, asynchronous: bool) -> None:
    moves.errors[1] = ZeroDivisionError("our bug")
    copier = Copier(moves, asynchronous=asynchronous)
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


def test_close_waits_for_the_page_being_copied_and_drops_the_rest(moves: Recorder) -> None:
    copier = Copier(moves, asynchronous=True)
    moves.gate.clear()
    copier.start([transfer(1, 1, 2), transfer(2, 3), Forget((HostId(1),))])
    wait_until(lambda: moves.did == ["begin 1"])
    closing = Thread(target=copier.close)
    closing.start()
    wait_until(lambda: copier._is_closed)
    assert not moves.closed.is_set()
    moves.gate.set()
    closing.join(PATIENCE_S)
    assert moves.closed.is_set()
    assert moves.did == ["begin 1", "end 1"]
    copier.close()


@pytest.mark.parametrize("make", [transfer, save])
def test_close_does_not_wait_for_credit(moves: Recorder, make: Callable[..., AnyTransfer]) -> None:
    copier = Copier(moves, asynchronous=True)
    copier.pace(step_for(8))
    copier.start([make(1, *range(100))])
    until_busy(copier, 8)
    copier.close()
    assert moves.num_copied == 8


def test_without_a_thread_everything_lands_at_once(moves: Recorder) -> None:
    before = threading.active_count()
    copier = Copier(moves, asynchronous=False)
    copier.pace(step_for(1))
    copier.start([save(3, 1, 2), transfer(1, *range(100)), transfer(2)])
    assert threading.active_count() == before
    assert copier.take().landed == [1, 2, 3]
    copier.close()
