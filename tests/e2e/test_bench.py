"""`kvalet bench pressure`, on a tiny model whose prompts are of some 430 tokens."""

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
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx_train=4096)


def bench(*args: str) -> tuple[list[str], dict[str, Any]]:
    """The lines of the table, and what the last line says."""
    command = [sys.executable, "-m", "kvalet", "bench", "pressure", "--tokens", "200", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(lines[-1])
    return [line for line in lines if line.startswith("|")], result


def test_a_server_started_for_it(model: Path) -> None:
    table, result = bench("-m", str(model), "--", "-t", "1", "-c", POOL, "--preempt-ram", "0")
    (run,) = result["runs"]
    assert len(table) == 3
    assert (run["completed"], run["identical"], run["chats"]) == (4, 4, 4)
    assert run["parks"] == run["recomputed"] >= 1
    assert run["recomputed_tokens"] > 0
    assert run["longest_parked_s"] > 0


def test_a_server_that_runs_already_beside_small_requests(model: Path) -> None:
    with ServerProcess("-m", str(model), "-t", "1", "-c", POOL) as server:
        _, result = bench("--url", server.url, "--small")
    (run,) = result["runs"]
    assert (run["completed"], run["identical"]) == (4, 4)
    assert run["small_requests"] >= 1


def test_uneven_chats_in_both_orders(model: Path) -> None:
    table, result = bench("-m", str(model), "--uneven", "--", "-t", "1", "-c", POOL)
    assert [run["--preempt-resume"] for run in result["runs"]] == ["head", "pass"]
    assert [run["identical"] for run in result["runs"]] == [8, 8]
    assert len(table) == 4
