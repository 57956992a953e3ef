"""Second turns of any server."""

import json
from dataclasses import asdict, replace

from kvalet.bench.target import Where, at
from kvalet.bench.turns import HEADINGS, Turn, Turns, measure, rows
from tests.bench.foreign import Foreign, serving

FOUND = Turns(warm=Turn(100.0, 1600, 1500), cold=Turn(2000.0, 1600, 0))


def test_a_row_for_cold_and_for_warm() -> None:
    cold, warm = rows([FOUND, replace(FOUND, warm=Turn(200.0, 1600, 1500))])
    assert cold[:3] == ["cold", "2000 (2000-2000)", "-"]
    assert warm[:3] == ["warm", "150 (100-200)", "15.0 (10.0-20.0)"]
    assert len(cold) == len(warm) == len(HEADINGS)


def test_a_turn_without_text_is_wrong() -> None:
    assert FOUND.is_right
    silent = replace(FOUND, warm=Turn(None, 1600, 0))
    assert not silent.is_right
    assert silent.comparable() == {"first token of a cold one ms": 2000.0}
    assert json.loads(json.dumps(asdict(silent), allow_nan=False))["warm"]["first_token_ms"] is None
    assert list(rows([silent]))[1][1:3] == ["-", "-"]


def test_no_history_comes_again() -> None:
    with serving(Foreign()) as foreign:
        target = at(foreign.url)
        for number in range(2):
            measure(target, Where(url=foreign.url, first=12_000), number)
    systems = [body["messages"][0]["content"] for body in foreign.bodies[1:]]
    openings = [system.split(".")[0] for system in systems if "." in system]
    assert openings == [f"1200{n}" for n in (0, 0, 1, 2, 2, 3)]
