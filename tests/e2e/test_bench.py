"""`kvalet bench`, on a tiny model whose prompts are of some 430 tokens."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvalet.bench.process import ServerProcess
from tests.engine.tiny_models import write_tiny_llama

POOL = "1856"  # the prompts fit, the chats do not


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx_train=16384)


def pressure(*args: str) -> tuple[list[str], dict[str, Any]]:
    return bench("pressure", "--tokens", "200", *args)


def bench(*args: str) -> tuple[list[str], dict[str, Any]]:
    """The lines of the tables, and what the last line says."""
    command = [sys.executable, "-m", "kvalet", "bench", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
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


def test_uneven_chats_in_both_orders(model: Path) -> None:
    table, result = pressure("-m", str(model), "--uneven", "--", "-t", "1", "-c", POOL)
    assert [run["--preempt-resume"] for run in result["runs"]] == ["head", "pass"]
    assert [run["identical"] for run in result["runs"]] == [8, 8]
    assert len(table) == 4


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
