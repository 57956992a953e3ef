"""Which gaps between tokens ran beside a copy, and beside how many chats.

Streams are those of a server whose step number n ends at n seconds. Chat "away" is planned out of
step 5, of which it learns at the end of that step, and takes part again from step 9 on.
"""

from collections import Counter

import pytest

from kvalet.bench.chats import Chat
from kvalet.bench.gaps import gaps, tokens_per_s
from tests.bench.streams import chat, moments, steps

LATE_S = 0.02  # between the streams of one step
# Of two chats both begin with step 0; for the one that learns of it first, the other seems to be
# still in its prefill in step 1.
BOTH = (2 * 4 - 1) + 3 + 4  # steps 1 to 4; "away" from its second step after its return; 9 to 12


def away() -> Chat:
    told = moments("sent -9, preempted 5.01, resumed 8.01")
    return chat("away", [*told, *steps(0, 4), *steps(9, 12)])


def beside(late_s: float = LATE_S) -> Chat:
    return chat("beside", [*moments("sent -9"), *steps(0, 12, late_s=late_s)])


def found(*chats: Chat, is_async: bool) -> Counter[tuple[int, bool]]:
    """How many gaps there are by the number of running chats, with and without a copy."""
    return Counter((gap.num_running, gap.is_beside_copy) for gap in gaps(chats, is_async=is_async))


@pytest.mark.parametrize("late_s", [-LATE_S, LATE_S])
def test_an_asynchronous_copy_runs_beside_the_steps_after_its_notice(late_s: float) -> None:
    """Steps 6 to 8, of those that the other chat is alone in, 5 to 8."""
    assert found(away(), beside(late_s), is_async=True) == {
        (2, False): BOTH,
        (1, False): 1,
        (1, True): 3,
    }


@pytest.mark.parametrize("late_s", [-LATE_S, LATE_S])
def test_a_synchronous_copy_has_run_when_its_notice_comes(late_s: float) -> None:
    assert found(away(), beside(late_s), is_async=False) == {
        (2, False): BOTH,
        (1, True): 4,
    }


def test_pieces_that_arrive_late_and_together_are_of_their_steps() -> None:
    def late(name: str, late_s: float) -> Chat:
        """Of step 6 with those of step 7."""
        stalled = [*steps(0, 5, late_s=late_s), *steps(6, 6, late_s=0.99 + late_s)]
        told = [*stalled, *steps(7, 12, late_s=late_s)]
        return chat(name, [*moments("sent -9"), *told])

    both = late("first", 0.0), late("second", LATE_S)
    assert found(*both, is_async=True) == {(2, False): 2 * 12 - 1}


def test_its_own_pause_is_no_gap() -> None:
    assert found(away(), is_async=True) == {(1, False): 4 + 3}


def test_a_gap_beside_a_prefill_is_left_out() -> None:
    late = chat("late", [*moments("sent 3.5"), *steps(7, 12, late_s=LATE_S)])
    first = chat("first", [*moments("sent -9"), *steps(0, 12)])
    assert found(first, late, is_async=True) == {
        (1, False): 3,  # up to step 3; 4 to 7 have a prefill beside them
        (2, False): 2 * 5 - 1,  # and so has 8, which began a moment before the first piece arrived
    }


def test_of_a_piece_there_is_no_gap() -> None:
    assert found(chat("short", [*moments("sent 0"), *steps(1, 1)]), is_async=True) == {}


def test_throughput_counts_while_all_are_there() -> None:
    short = chat("short", [*moments("sent 1"), *steps(2, 8)])
    long = chat("long", [*moments("sent 0"), *steps(0, 12)])
    assert tokens_per_s([short, long]) == 2.0


def test_chats_that_never_met_have_no_throughput() -> None:
    first = chat("first", [*moments("sent 0"), *steps(1, 3)])
    second = chat("second", [*moments("sent 3"), *steps(4, 6)])
    assert tokens_per_s([first, second]) is None
