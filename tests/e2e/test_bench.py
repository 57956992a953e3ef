"""`kvalet bench`, on a tiny model whose prompts are of some 430 tokens."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvalet.bench.process import ServerProcess
from kvalet.sim.calibration import load
from kvalet.sim.costs import CostModel
from tests.bench.foreign import Foreign, serving
from tests.engine.tiny_models import write_tiny_llama

POOL = "1856"  # the prompts fit, the chats do not


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx_train=16384)


def kvalet(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvalet", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def pressure(*args: str) -> tuple[list[str], dict[str, Any]]:
    return bench("pressure", "--tokens", "200", *args)


def bench(*args: str, code: int = 0) -> tuple[list[str], dict[str, Any]]:
    """The lines of the tables, and what the last line says."""
    done = kvalet("bench", *args)
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(lines[-1])
    return [line for line in lines if line.startswith("|")], result


def test_a_server_started_for_it(model: Path) -> None:
    table, result = pressure("-m", str(model), "--", "-t", "1", "-c", POOL, "--preempt-ram", "0")
    (run,) = result["runs"]
    assert len(table) == 3
    assert (run["completed"], run["identical"], run["chats"]) == (4, 4, 4)
    assert run["parks"] == run["recomputed"] >= 1
    assert run["recomputed_tokens"] > 0
    assert run["longest_parked_s"] > 0


def test_a_server_that_runs_already_beside_small_requests(model: Path) -> None:
    with ServerProcess("-m", str(model), "-t", "1", "-c", POOL) as server:
        _, result = pressure("--url", server.url, "--small")
    (run,) = result["runs"]
    assert (run["completed"], run["identical"]) == (4, 4)
    assert run["small_requests"] >= 1


def test_uneven_chats_in_each_order(model: Path) -> None:
    table, result = pressure("-m", str(model), "--uneven", "--", "-t", "1", "-c", POOL)
    assert [run["--preempt-resume"] for run in result["runs"]] == ["head", "parked", "pass"]
    assert [run["identical"] for run in result["runs"]] == [8, 8, 8]
    assert len(table) == 5


def test_stalls(model: Path) -> None:
    table, result = bench(
        *("stall", "-m", str(model), "--tokens", "200", "--rounds", "1", "--", "-t", "1")
    )
    unforced, *forced = result["runs"]
    assert [run["mode"] for run in forced] == ["async", "sync"]
    assert unforced["parks"] == unforced["bytes_out"] == 0
    for run in forced:
        assert run["parks"] == 4 * 3
        assert run["bytes_out"] == run["bytes_in"] > 0
    assert len(table) == 2 + len(result["gaps"]) + 2 + 3


def test_stalls_with_pages_copied_ahead_or_not(model: Path) -> None:
    flags = ("--tokens", "200", "--rounds", "1", "--", "-t", "1", "-c", POOL)
    table, result = bench("stall", "--mirror", "-m", str(model), *flags)
    on, off = result["runs"]
    assert (on["mirror"], off["mirror"]) == ("on", "off")
    assert on["parks"]
    assert off["parks"]
    assert len(table) == 4


def test_second_turns(model: Path) -> None:
    """The histories are of some 4,000 tokens here."""
    table, result = bench(
        "prefix", "-m", str(model), "--rounds", "1", "--", "-t", "1", "-c", "9600"
    )
    places = [turn["place"] for turn in result["turns"]]
    assert places == ["computed", "pool", "computed", "host", "computed", "disk"]
    assert len(table) == 2 + 4


def test_latency_of_a_server_started_for_it(model: Path) -> None:
    """Faster than it can answer: four slots and a queue before them."""
    flags = ("--rates", "4,40", "--requests", "12", "--max-first", "60", "--max-gap", "60")
    table, result = bench("latency", "-m", str(model), *flags, "--", "-t", "1")
    slow, fast = result["rates"]
    assert [rate["completed"] for rate in (slow, fast)] == [12, 12]
    assert slow["parks"] is not None
    for rate in (slow, fast):
        assert 0 < rate["first_p50_ms"] <= rate["first_p95_ms"]
        assert rate["goodput"] == pytest.approx(12 / rate["wall_s"])
    assert len(table) == 4


def test_texts_are_the_same_in_every_way(model: Path) -> None:
    table, result = bench("exact", "-m", str(model), "--tokens", "20", "--every", "8")
    rows = {row["way"]: row for row in result["rows"]}
    assert {(row["identical"], row["asked"]) for row in rows.values()} == {(8, 8)}
    assert rows["parked every 8 tokens, copied back"]["happened"].startswith("16 parks")
    assert rows["parked every 8 tokens, computed again"]["happened"].startswith("16 parks, 0.0 MiB")
    assert {"again", "beside three others", "in batches of 32", "after a restart"} < set(rows)
    assert len(table) == 2 + len(rows) == 2 + 7


def test_a_record_of_steps_is_what_the_simulator_fits(model: Path, tmp_path: Path) -> None:
    record, costs = tmp_path / "record.jsonl", tmp_path / "costs.json"
    record.write_text("what was there before\n")
    flags = ("-m", str(model), "--record", str(record), "--", "-t", "1", "-c", POOL)
    _, result = pressure(*flags)
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
        _, result = pressure("--url", foreign.url)
        _, swept = bench("latency", "--url", foreign.url, "--rates", "50", "--requests", "10")
        _, turns = bench("prefix", "--url", foreign.url, "--rounds", "2")
        _, matrix = bench("exact", "--url", foreign.url, "--tokens", "20")
    (run,) = result["runs"]
    assert (run["completed"], run["identical"], run["parks"]) == (4, 4, None)
    (rate,) = swept["rates"]
    assert (rate["completed"], rate["parks"]) == (10, None)
    assert rate["tokens_per_s"] > 0
    assert len(turns["rounds"]) == 2
    assert [row["identical"] for row in matrix["rows"]] == [8, 8]
    assert foreign.refused == {"stream_options", "ignore_eos"} - set(takes)


def test_a_foreign_server_whose_texts_depend_on_who_is_beside() -> None:
    with serving(Foreign(is_inexact=True)) as foreign:
        table, matrix = bench("exact", "--url", foreign.url, "--tokens", "20", code=1)
        _, result = bench("pressure", "--tokens", "20", "--url", foreign.url, code=1)
    again, beside = matrix["rows"]
    assert (again["identical"], beside["identical"]) == (8, 0)
    assert len(table) == 4
    (run,) = result["runs"]
    assert (run["completed"], run["identical"]) == (4, 0)


def test_two_servers_by_turns(model: Path) -> None:
    started = ("-m", str(model), "--rounds", "2")
    with serving(Foreign(is_inexact=True)) as foreign:
        vs = ("--vs", foreign.url)
        table, result = pressure(*vs, *started, "--", "-t", "1", "-c", POOL)
        _, swept = bench("latency", *vs, *started, "--rates", "20", "--requests", "6")
        _, matrix = bench("exact", *vs, *started, "--tokens", "20")
        _, turns = bench("prefix", *vs, *started, "--", "-c", "9600")
    for found in (result, swept, matrix, turns):
        assert len(found["rounds"]) == 2
        assert all(len(ratios) <= 2 for ratios in found["ratios"].values())
    for both in result["rounds"]:
        assert (both["first"]["identical"], both["second"]["identical"]) == (4, 0)
        assert both["first"]["parks"] > 0
        assert both["second"]["parks"] is None
    assert result["ratios"]["completed"] == [1.0, 1.0]
    assert len(table) == 2 + len(result["ratios"])
    assert matrix["ratios"]["beside three others: share identical"] == []
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
    ],
)
def test_what_cannot_be_measured_is_one_line(args: tuple[str, ...], complaint: str) -> None:
    done = kvalet("bench", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kvalet: ")
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr
