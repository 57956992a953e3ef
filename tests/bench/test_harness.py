"""Rounds on several servers: who goes first, what is compared, and what a failure is."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from rich.console import Console

from kvalet.bench import harness, loads
from kvalet.bench.decode import Decode
from kvalet.bench.exact import Exact
from kvalet.bench.figures import counts, rate
from kvalet.bench.harness import (
    FIRST,
    Benchmark,
    Case,
    Played,
    exit_code,
    measure,
)
from kvalet.bench.latency import Latency
from kvalet.bench.loads import Session
from kvalet.bench.prefix import Prefix
from kvalet.bench.pressure import Pressure
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import Row, Turn, comparison, tables, told
from kvalet.bench.target import Target, Where
from kvalet.errors import ConfigError, EngineError
from tests.bench.foreign import Foreign, serving

SECOND = "server 2"


@dataclass(frozen=True)
class Two:
    """Two chats at once; a second case breaks off."""

    breaks: bool = False
    POOL: ClassVar[tuple[str, ...]] = ()
    ROUNDS: ClassVar[int] = 1
    needs_own: ClassVar[str] = ""

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        yield Case("two", loads.at_once(pressing_chats(3, 2, first=where.first + 2 * number)))
        assert "two" in played
        if self.breaks:
            yield Case("broken", broken)

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        for name, one in played.items():
            yield Row(name, {**counts(one.chats), "tok/s": rate(one.chats, one.wall_s)})


async def broken(session: Session) -> None:
    raise EngineError("the slot is gone")


def ran(
    where: Where, benchmark: Benchmark, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str], Mapping[str, Any]]:
    """The exit code, what was printed, and the last round of the JSON in its last line."""
    code = harness.run(Console(soft_wrap=True, highlight=False, markup=False), where, benchmark)
    *lines, last = capsys.readouterr().out.splitlines()
    return code, lines, json.loads(last)["rounds"][-1]


def test_another_server_goes_first_in_every_round() -> None:
    told: list[str] = []
    with serving(Foreign()) as first, serving(Foreign()) as second:
        where = Where(url=first.url, vs=(second.url, first.url), num_rounds=3)
        rounds = measure(told.append, where, Two())
    assert [line.split(",")[1].split(":")[0].strip() for line in told[1:]] == [
        *(FIRST, SECOND, "server 3"),
        *(SECOND, "server 3", FIRST),
        *("server 3", FIRST, SECOND),
    ]
    assert [list(turns) for turns in rounds] == [[FIRST, SECOND, "server 3"]] * 3
    assert exit_code(rounds) == 0


@pytest.mark.parametrize("benchmark", [Pressure(tokens=3), Exact(3), Prefix(), Two(), Decode(3)])
def test_a_second_server_that_fails_is_a_figure(
    benchmark: Benchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where chats of it are compared with others, and where one is alone."""
    with serving(Foreign()) as first, serving(Foreign(has_no_room=True)) as second:
        where = Where(url=first.url, vs=(second.url,), num_rounds=1)
        code, lines, found = ran(where, benchmark, capsys)
    assert code == harness.OTHER_WRONG
    for row in found[SECOND]["rows"]:
        assert (row["failed"], row["complete"]) == (row["chats"], 0)
    assert any("chats failed: " in line and "no room" in line for line in lines)
    table = [line for line in lines if line.startswith("|")][2:]
    assert table
    assert all(line.endswith("| - |") for line in table)  # no ratio of anything
    assert any(line.split("|")[3].strip() not in ("", "-") for line in table)


def test_of_a_server_that_is_gone_every_chat_has_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "at", Target)  # it was there when it was looked at
    code, lines, found = ran(Where(url="http://127.0.0.1:9"), Two(), capsys)
    (row,) = found[FIRST]["rows"]
    assert (row["failed"], row["complete"]) == (2, 0)
    assert code == harness.FIRST_WRONG
    assert any("two: 2 of 2 chats failed: ConnectError" in line for line in lines)


def test_a_first_server_that_fails_is_another_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Foreign(has_no_room=True)) as first, serving(Foreign()) as second:
        where = Where(url=first.url, vs=(second.url,))
        code, _, found = ran(where, Latency((50.0,), 3), capsys)
    assert code == harness.FIRST_WRONG
    (row,) = found[FIRST]["rows"]
    assert (row["failed"], row["first token p50 ms"], row["goodput/s"]) == (3, None, 0.0)


def test_a_server_that_stops_early_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    takes = frozenset({"ignore_eos", "stream_options"})
    with serving(Foreign(takes=takes, stops_after=2)) as foreign:
        code, lines, found = ran(Where(url=foreign.url), Two(), capsys)
    (row,) = found[FIRST]["rows"]
    assert (row["complete"], row["stopped early"], row["failed"]) == (0, 2, 0)
    assert code == harness.FIRST_WRONG
    assert f"{FIRST}: two: 2 of 2 chats stopped early (stop)" in lines


def test_a_load_that_breaks_off_leaves_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Foreign()) as foreign:
        code, lines, found = ran(Where(url=foreign.url), Two(breaks=True), capsys)
    whole, cut = found[FIRST]["rows"]
    assert (whole["complete"], cut["complete"], cut["tok/s"]) == (2, 0, None)
    assert code == harness.FIRST_WRONG
    assert f"{FIRST}: broken: broke off: EngineError: the slot is gone" in lines


def test_servers_of_its_own_are_started_or_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="--matrix starts servers of its own"):
        measure(print, Where(url="http://127.0.0.1:9"), Pressure(matrix=True))


def turn(faults: tuple[str, ...] = (), **figures: float | None) -> Turn:
    return Turn({"a": Row("a", figures)}, faults)


ROUNDS = [
    {FIRST: turn(speed=100.0, failed=0), SECOND: turn(speed=50.25, failed=0)},
    {FIRST: turn(speed=90.0, failed=0), SECOND: turn(speed=None, failed=0)},
    {FIRST: turn(speed=80.0, failed=0), SECOND: turn(speed=60.25, failed=2)},
    {FIRST: turn(speed=110.0, failed=0), SECOND: turn(("slow",), speed=110.0, failed=0)},
]


def test_ratios_are_by_round_where_all_were_complete() -> None:
    assert told(ROUNDS)["ratios"] == {
        "a: speed": {SECOND: [100 / 50.25, 1.0]},
        "a: failed": {SECOND: []},
    }


def test_a_comparison_has_medians_and_ranges() -> None:
    _, _, speed, num_failed, _ = comparison(ROUNDS)
    assert speed == "| a | speed | 95 (80-110) | 60.2 (50.2-110.0) | 1.50 (1.00-1.99) |"
    assert num_failed == "| a | failed | 0 | 0 (0-2) | - |"
    assert exit_code(ROUNDS) == harness.OTHER_WRONG


def test_rows_with_other_figures_are_in_another_table() -> None:
    rounds = [
        {FIRST: Turn({row.case: row for row in rows}, ())}
        for rows in (
            (Row("a", {"x": 1.0}), Row("b", {"x": None}), Row("c", {"y": 3.0})),
            (Row("a", {"x": 2.0}), Row("b", {"x": None}), Row("c", {"y": 3.0})),
        )
    ]
    lines = [line for line in tables(rounds) if not line.startswith("|-")]
    assert lines == [
        *("| case | x |", "| a | 2 (1-2) |", "| b | - |", ""),
        *("| case | y |", "| c | 3 |", ""),
    ]


@pytest.mark.parametrize(
    ("benchmark", "count"),
    [(Pressure(2, 2), 2), (Latency((100.0, 200.0), 2), 4), (Exact(2), 4), (Prefix(), 2)],
)
def test_no_prompt_comes_again(benchmark: Benchmark, count: int) -> None:
    """`count`: of prompts in a round."""
    openings: list[str] = []
    with serving(Foreign()) as foreign:
        for first in (0, 1000):
            foreign.bodies.clear()
            where = Where(url=foreign.url, first=first, num_rounds=2)
            measure(lambda line: None, where, benchmark)
            found = {body["messages"][0]["content"] for body in foreign.bodies} - {"How are you?"}
            assert len(found) == 2 * count
            openings += found
    assert len(openings) == len(set(openings))
