"""What `kvalet bench prefix` makes of its runs."""

from dataclasses import replace

import pytest

from kvalet.bench.prefix import COLD, HEADINGS, PLACES, Turn, rows
from kvalet.bench.prompts import long_messages

COLD_TURN = Turn(0, COLD, 4000.0, 1600, 70, 1600, 0, 0, "text")
POOL_TURN = Turn(0, "pool", 200.0, 1600, 70, 96, 1504, 0, "text", cold_ms=4000.0)
HOST_TURN = replace(POOL_TURN, place="host", num_host_pages=47)


def test_a_row_for_every_place() -> None:
    turns = [COLD_TURN, POOL_TURN, replace(POOL_TURN, first_token_ms=400.0), HOST_TURN]
    cold, pool, host, disk = rows(turns)
    assert (cold[0], cold[-1]) == (COLD, "-")
    assert pool[:3] == ["pool", "300 (200-400)", "15.0 (10.0-20.0)"]
    assert (pool[-1], host[-2], disk[-1]) == ("2/2", "47 (47-47)", "0/0")
    assert {len(row) for row in (cold, pool, host, disk)} == {len(HEADINGS)}
    assert {"pool", "host", "disk"} == set(PLACES)


def test_without_text_nothing_is_faster() -> None:
    silent = replace(POOL_TURN, first_token_ms=None, text="")
    _, pool, _, _ = rows([silent])
    assert pool[1:3] == ["-", "-"]
    assert not silent.is_right


@pytest.mark.parametrize("turn", [COLD_TURN, POOL_TURN, HOST_TURN])
def test_right(turn: Turn) -> None:
    assert turn.is_right


@pytest.mark.parametrize(
    "turn",
    [
        replace(POOL_TURN, num_computed=70 + 33),
        replace(POOL_TURN, is_as_cold=False),
        replace(POOL_TURN, text=""),
        replace(HOST_TURN, num_host_pages=0),
        replace(POOL_TURN, num_host_pages=1),
    ],
)
def test_wrong(turn: Turn) -> None:
    assert not turn.is_right


def test_histories_differ_from_their_first_word_on() -> None:
    openings = {long_messages(number)[0]["content"].split()[0] for number in range(5)}
    assert len(openings) == 5
    assert len(" ".join(m["content"] for m in long_messages(0)).split()) > 1000
