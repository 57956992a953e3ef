"""What `kvalet bench prefix` makes of its runs."""

from dataclasses import replace

import pytest

from kvalet.bench.chats import Chat
from kvalet.bench.harness import Played
from kvalet.bench.prefix import COLD, DISK, FIRST_TURN, HOST, POOL, SECOND_TURN, Prefix
from kvalet.bench.prompts import long_messages
from kvalet.bench.report import Row
from tests.bench.streams import chat, failed, moments, played


def asked(told: str, *, prompt: int, computed: int, text: str = "text") -> Chat:
    found = chat("asked", moments(told), tokens=32, of=32, text=text)
    found.num_prompt, found.num_computed, found.num_cached = prompt, computed, prompt - computed
    return found


def turn(one: Chat, num_host_pages: int = 0) -> Played:
    return played([chat(""), one], {"prefix_pages_host_total": num_host_pages})


FIRST = turn(asked("sent 0, piece 4", prompt=1499, computed=1499))
COLD_TURN = turn(asked("sent 0, piece 4", prompt=1600, computed=1600))
WARM = asked("sent 0, piece 0.2", prompt=1600, computed=96)


def rows(place: str, warm: Played) -> list[Row]:
    return list(Prefix().rows({FIRST_TURN: FIRST, place + COLD: COLD_TURN, place: warm}))


def test_figures() -> None:
    cold, warm = rows(POOL, turn(WARM))
    assert (cold.figures["first token ms"], cold.figures["times faster than cold"]) == (4000, None)
    assert warm.figures["first token ms"] == pytest.approx(200)
    assert warm.figures["times faster than cold"] == pytest.approx(20)
    told = [warm.figures[name] for name in ("prompt tokens", "new", "computed", "cached")]
    assert told == [1600, 70, 96, 1504]


@pytest.mark.parametrize(
    ("place", "warm"), [(POOL, turn(WARM)), (HOST, turn(WARM, 47)), (DISK, turn(WARM, 47))]
)
def test_right(place: str, warm: Played) -> None:
    assert not any(row.faults for row in rows(place, warm))


@pytest.mark.parametrize(
    ("place", "warm", "fault"),
    [
        (POOL, turn(replace(WARM, num_computed=70 + 65)), "135 tokens computed, of which 70"),
        (POOL, turn(replace(WARM, text="other")), "not as cold"),
        (POOL, turn(replace(WARM, text="")), "no text came"),
        (HOST, turn(WARM), "0 pages from the host"),
        (POOL, turn(WARM, 1), "1 pages from the host"),
    ],
)
def test_wrong(place: str, warm: Played, fault: str) -> None:
    assert any(fault in told for told in rows(place, warm)[1].faults)


def test_another_history_may_be_answered_otherwise() -> None:
    other = turn(replace(WARM, text="other"))
    assert not any(row.faults for row in rows(SECOND_TURN, other))


def test_without_a_first_turn_the_rest_is_told() -> None:
    cut = {FIRST_TURN: played([]), SECOND_TURN: played([failed("asked")])}
    (row,) = Prefix().rows(cut)
    assert (row.figures["failed"], row.figures["first token ms"]) == (1, None)
    assert row.faults


def test_histories_differ_from_their_first_word_on() -> None:
    openings = {long_messages(number)[0]["content"].split()[0] for number in range(5)}
    assert len(openings) == 5
    assert len(" ".join(m["content"] for m in long_messages(0)).split()) > 1000
