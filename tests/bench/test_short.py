"""The one table of all benchmarks, from figures that are given."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from kvalet.bench import decode, exact, latency, prefix, pressure, short, stall
from kvalet.bench.decode import Decoding
from kvalet.bench.exact import Matrix, Row
from kvalet.bench.figures import Figures
from kvalet.bench.latency import Sweep
from kvalet.bench.target import Target, Where
from tests.bench.streams import steps
from tests.bench.test_latency import figures
from tests.bench.test_prefix import COLD_TURN, HOST_TURN, POOL_TURN
from tests.bench.test_stall import MIB, counted, forced, runs

PRESSED = Figures(4, 4, 4, 3, 3, 0, 0, 10.0, 80.0, 2.0, 20.0, 30.0, 0)
EXACT = [Row("again", 8, 8, None), Row("parked", 8, 7, 12, "9 parks")]


@contextmanager
def served(where: Where, *flags: str) -> Iterator[Target]:
    yield Target("http://127.0.0.1:1")


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = [Decoding(count, 100.0, 10.0, 9.0) for count in decode.COUNTS]
    monkeypatch.setattr(decode, "measure", lambda options: decoding)
    monkeypatch.setattr(pressure, "rows_of", lambda console, options, kind: [({}, PRESSED)])
    stalled = [*runs(), stall.Run(0, "sync", forced(steps(0, 8)), counted(1, MIB))]
    monkeypatch.setattr(stall, "measure", lambda console, options: stalled)
    monkeypatch.setattr(latency, "measure", lambda *args, **kw: Sweep([figures()]))
    turns = [COLD_TURN, POOL_TURN, HOST_TURN]
    monkeypatch.setattr(prefix, "measure", lambda console, options: turns)
    monkeypatch.setattr(exact, "measure", lambda console, options: Matrix(EXACT))
    monkeypatch.setattr(Where, "served", served)
    monkeypatch.setattr(short, "begin", lambda: None)


@pytest.mark.usefixtures("_measured")
def test_one_table_and_what_is_wrong_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    assert short.run(console, Where()) == 1
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(result["lines"]) == 2 + 2 + 1 + 3 + 1 + 4 + 2
    wrong = [(line["benchmark"], line["case"]) for line in result["lines"] if not line["is_right"]]
    assert wrong == [("latency", "0.5 a second"), ("exact", "parked")]
    assert "| pressure | 4 chats in 1024 cells | 4/4 complete, 4/4 as alone, 3 parks" in table[4]
    assert "3/4 complete, first token p50 / p95 500 / 1500 ms" in "".join(table)
    assert "times faster, 1/1 as cold" in "".join(table)
    assert "7/8 identical; 9 parks |" in table[-1]
