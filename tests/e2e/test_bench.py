"""`kvalet bench`, on a tiny model whose prompts are of some 430 tokens."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvalet.bench.process import ServerProcess
from kvalet.sim.calibration import load
from kvalet.sim.costs import CostModel
from tests.bench.foreign import Foreign, serving
from tests.engine.tiny_models import write_tiny_llama

POOL = "1856"  # the prompts fit, the chats do not

Rows = dict[str, dict[str, Any]]  # by case


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx_train=16384)


def kvalet(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvalet", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


class Found(NamedTuple):
    table: list[str]  # its lines
    result: dict[str, Any]  # the last line

    def rows(self, number: int = 0, server: str = "server 1") -> Rows:
        """Of a round."""
        return {row["case"]: row for row in self.result["rounds"][number][server]["rows"]}


def bench(*args: str, code: int = 0) -> Found:
    done = kvalet("bench", *args)
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return Found([line for line in lines if line.startswith("|")], json.loads(lines[-1]))


def pressure(*args: str) -> Found:
    return bench("pressure", "--tokens", "200", *args)


def are_right(row: dict[str, Any], count: int) -> bool:
    return bool(row["complete"] == row["as alone"] == count)


def test_a_server_started_for_it(model: Path) -> None:
    found = pressure("-m", str(model), "--", "-t", "1", "-c", POOL, "--preempt-ram", "0")
    ((case, row),) = found.rows().items()
    assert len(found.table) == 3
    assert (case, are_right(row, 4)) == ("at once", True)
    assert row["parks"] == row["recomputed"] >= 1
    assert row["tokens recomputed"] > 0
    assert row["longest parked s"] > 0


def test_a_server_that_runs_already_beside_small_requests(model: Path) -> None:
    with ServerProcess("-m", str(model), "-t", "1", "-c", POOL) as server:
        row = pressure("--url", server.url, "--small").rows()["at once"]
    assert are_right(row, 4)
    assert row["small answered"] >= 1


def test_stalls(model: Path) -> None:
    found = bench("stall", "-m", str(model), "--tokens", "200", "--rounds", "1", "--", "-t", "1")
    rows = found.rows()
    assert rows["unforced"]["parks"] == rows["unforced"]["MiB out"] == 0
    for mode in ("async", "sync"):
        assert rows[mode]["parks"] == 4 * 3
        assert rows[mode]["MiB out"] == rows[mode]["MiB in"] > 0
    assert len(found.table) == 2 + 2 + len(rows)


def test_second_turns(model: Path) -> None:
    """The histories are of some 4,000 tokens here."""
    flags = ("-t", "1", "-c", "9600")
    found = bench("prefix", "-m", str(model), "--rounds", "1", "--", *flags)
    places = [place + cold for place in ("pool", "host", "disk") for cold in (", cold", "")]
    assert list(found.rows()) == places
    assert all(found.rows()[place]["times faster than cold"] > 0 for place in places[1::2])


def test_decoding(model: Path) -> None:
    rows = bench("decode", "-m", str(model), "--tokens", "60", "--rounds", "1", "--").rows()
    assert list(rows) == ["1 at once", "4 at once"]
    assert all(row["tok/s"] > 0 < row["of it in ggml ms"] < row["step ms"] for row in rows.values())


def test_latency_of_a_server_started_for_it(model: Path) -> None:
    """Faster than it can answer: four slots and a queue before them."""
    flags = ("--rates", "4,40", "--requests", "12", "--max-first", "60", "--max-gap", "60")
    rows = bench("latency", "-m", str(model), *flags, "--", "-t", "1").rows()
    assert list(rows) == ["4 a second", "40 a second"]
    for row in rows.values():
        assert row["complete"] == 12
        assert row["parks"] is not None
        assert 0 < row["first token p50 ms"] <= row["first token p95 ms"]
        assert row["goodput/s"] > 0


def test_texts_are_the_same_in_every_way(model: Path) -> None:
    rows = bench("exact", "-m", str(model), "--tokens", "20", "--every", "8").rows()
    assert len(rows) == 7
    assert all(are_right(row, 8) for row in rows.values())
    back = rows["parked every 8 tokens, copied back"]
    again = rows["parked every 8 tokens, computed again"]
    assert back["parks"] == again["parks"] == 16
    assert back["MiB copied back"] > 0 == again["MiB copied back"]
    assert again["tokens recomputed"] > 0


def test_a_record_of_steps_is_what_the_simulator_fits(model: Path, tmp_path: Path) -> None:
    record, costs = tmp_path / "record.jsonl", tmp_path / "costs.json"
    record.write_text("what was there before\n")
    flags = ("-m", str(model), "--record", str(record), "--", "-t", "1", "-c", POOL)
    result = pressure(*flags).result
    steps = load(record)
    assert {step.decode_rows for step in steps} >= {1, 2, 3}
    assert sum(step.pages_out for step in steps) > 0
    assert sum(step.pages_in for step in steps) > 0
    assert result["where"]["record"] == str(record)
    done = kvalet("simulate", "--calibrate", str(record), "--costs", str(costs))
    assert done.returncode == 0, done.stderr
    found = CostModel.load(costs)
    assert found.source == f"record.jsonl, {len(steps)} steps"
    assert found.page_in_s > 0
    assert kvalet("simulate", "--costs", str(costs), "--seeds", "1").returncode == 0


@pytest.mark.parametrize("takes", [("stream_options", "ignore_eos"), ()])
def test_a_foreign_server(takes: tuple[str, ...]) -> None:
    with serving(Foreign(takes=frozenset(takes))) as foreign:
        url = ("--url", foreign.url)
        pressed = pressure(*url).rows()["at once"]
        (swept,) = bench("latency", *url, "--rates", "50", "--requests", "10").rows().values()
        turns = bench("prefix", *url, "--rounds", "2")
        matrix = bench("exact", *url, "--tokens", "20").rows()
    assert (are_right(pressed, 4), pressed["parks"]) == (True, None)
    assert (swept["complete"], swept["parks"]) == (10, None)
    assert swept["tok/s"] > 0
    assert list(turns.rows(1)) == ["second turn", "second turn, cold"]
    assert list(matrix) == ["beside three others", "again"]
    assert all(are_right(row, 8) for row in matrix.values())
    assert foreign.refused == {"stream_options", "ignore_eos"} - set(takes)


def test_a_foreign_server_whose_texts_depend_on_what_is_beside() -> None:
    with serving(Foreign(is_inexact=True)) as foreign:
        matrix = bench("exact", "--url", foreign.url, "--tokens", "20", code=1).rows()
        pressed = bench("pressure", "--tokens", "20", "--url", foreign.url, code=1).rows()
    assert [row["as alone"] for row in matrix.values()] == [0, 8]
    assert (pressed["at once"]["complete"], pressed["at once"]["as alone"]) == (4, 0)


def test_two_servers_by_turns(model: Path) -> None:
    started = ("-m", str(model), "--rounds", "2")
    with serving(Foreign(is_inexact=True)) as foreign:
        vs = ("--vs", foreign.url)
        pool = ("--tokens", "200", "--", "-t", "1", "-c", POOL)
        pressed = bench("pressure", *vs, *started, *pool, code=3)
        swept = bench("latency", *vs, *started, "--rates", "20", "--requests", "6")
        matrix = bench("exact", *vs, *started, "--tokens", "20", code=3)
        turns = bench("prefix", *vs, *started, "--", "-c", "9600")
    for found in (pressed, swept, matrix, turns):
        assert len(found.result["rounds"]) == 2
        assert len(found.table) == 2 + len(found.result["ratios"])
    for number in range(2):
        first, second = pressed.rows(number), pressed.rows(number, "server 2")
        assert are_right(first["at once"], 4)
        assert first["at once"]["parks"] > 0
        assert (second["at once"]["as alone"], second["at once"]["parks"]) == (0, None)
    assert pressed.result["ratios"]["at once: complete"] == {"server 2": [1.0, 1.0]}
    assert matrix.result["ratios"]["beside three others: as alone"] == {"server 2": []}
    openings = [body["messages"][0]["content"] for body in foreign.bodies]
    assert len(set(openings)) > 20  # other ones in every round


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("stall", "--url", "http://x"), "stall forces parks, which only a kvalet server"),
        (("pressure", "--matrix", "--vs", "http://x"), "--matrix starts servers of its own"),
        (("pressure", "--url", "http://x", "-m", "y"), "--model is for a server that is started"),
        (("latency", "--rates", "0"), "argument --rates: expected a number of at least 0.01"),
        (("latency", "--record", "/nowhere/x"), "--record: /nowhere/x: No such file"),
        (("exact", "--tokens", "0"), "argument --tokens: expected an integer of at least 1"),
        (("exact", "--url", "http://127.0.0.1:9"), "http://127.0.0.1:9 does not answer"),
        (("exact", "--vs", "http://127.0.0.1:9"), "http://127.0.0.1:9 does not answer"),
    ],
)
def test_what_cannot_be_measured_is_one_line(args: tuple[str, ...], complaint: str) -> None:
    done = kvalet("bench", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kvalet: ")
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr
