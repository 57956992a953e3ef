"""Times of a request as made: pauses belong to nothing but themselves."""

import pytest

from kvalet.runtime.stopwatch import Stopwatch


def started() -> Stopwatch:
    stopwatch = Stopwatch(arrived=4.0)
    assert stopwatch.start(10.0) == 6.0
    return stopwatch


def test_the_first_draw_ends_the_prompt_and_the_last_the_prediction() -> None:
    stopwatch = started()
    assert stopwatch.start(11.0) is None  # a later chunk of its prompt
    assert [stopwatch.draw(now) for now in (13.0, 14.0, 16.0)] == [3.0, 1.0, 2.0]
    stopwatch.stop(20.0)
    assert (stopwatch.prompt_s, stopwatch.predicted_s) == (3.0, 3.0)


@pytest.mark.parametrize(("draws_before", "prompt_s", "predicted_s"), [(0, 4.0, 0.0), (1, 1, 3.0)])
def test_a_pause_counts_for_neither(draws_before: int, prompt_s: float, predicted_s: float) -> None:
    stopwatch = started()
    for index in range(draws_before):
        stopwatch.draw(11.0 + index)
    stopwatch.pause(12.0)
    assert stopwatch.parked_s(15.0) == 3.0
    stopwatch.resume(112.0)
    stopwatch.draw(114.0)
    assert (stopwatch.prompt_s, stopwatch.predicted_s) == (prompt_s, predicted_s)
    assert stopwatch.parked_s(200.0) == 100.0


def test_a_draw_at_the_end_of_a_replay_ends_the_pause() -> None:
    stopwatch = started()
    stopwatch.draw(11.0)
    stopwatch.pause(12.0)
    assert stopwatch.draw(20.0) == 1.0
    stopwatch.resume(20.0)
    assert stopwatch.draw(21.0) == 1.0
    assert stopwatch.parked_s(30.0) == 8.0


def test_a_pause_from_before_its_first_step_is_no_part_of_the_prompt() -> None:
    stopwatch = Stopwatch()
    stopwatch.pause(1.0)
    stopwatch.start(5.0)
    stopwatch.resume(7.0)
    stopwatch.draw(8.0)
    assert (stopwatch.prompt_s, stopwatch.parked_s(9.0)) == (1.0, 6.0)


def test_a_park_within_a_replay_prolongs_the_pause() -> None:
    stopwatch = started()
    stopwatch.draw(11.0)
    stopwatch.pause(12.0)
    stopwatch.pause(15.0)
    stopwatch.resume(20.0)
    assert (stopwatch.last_pause_s, stopwatch.parked_s(30.0)) == (8.0, 8.0)


def test_a_client_waits_through_pauses_too() -> None:
    stopwatch = started()
    assert stopwatch.waited_s(12.0) == 8.0
    stopwatch.draw(12.0)
    stopwatch.pause(13.0)
    assert stopwatch.waited_s(20.0) == 8.0


def test_an_end_without_a_draw_is_all_prompt() -> None:
    stopwatch = started()
    stopwatch.pause(12.0)
    stopwatch.stop(15.0)
    assert (stopwatch.prompt_s, stopwatch.predicted_s, stopwatch.parked_s(99.0)) == (2.0, 0.0, 3.0)
