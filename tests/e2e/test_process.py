"""Starting, stopping and dying: what a shell and a supervisor see."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from kvalet.bench.process import ServerProcess
from tests.e2e.client import TIMEOUT_S, complete, metrics, open_stream, wait_until

ENDLESS = {"prompt": "I have", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_tells_open_streams(tiny_model: Path, signal_number: signal.Signals) -> None:
    with (
        ServerProcess("-m", str(tiny_model)) as server,
        open_stream(server.url, ENDLESS) as first,
        open_stream(server.url, ENDLESS) as second,
    ):
        start = time.monotonic()
        server.process.send_signal(signal_number)
        for lines in (first, second):
            events = [line for line in lines if line.startswith("data: ")]
            assert '"error"' in events[-1]
        server.process.wait(5)
        assert time.monotonic() - start < 2.0


def test_a_client_that_leaves_gives_everything_back(tiny: ServerProcess) -> None:
    with open_stream(tiny.url, ENDLESS):
        assert metrics(tiny.url)["requests_processing"] >= 1
    wait_until(lambda: metrics(tiny.url)["requests_processing"] == 0)
    assert metrics(tiny.url)["kv_cells_used"] == 0


def test_a_client_that_leaves_without_streaming_too(tiny: ServerProcess) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{tiny.url}/v1/completions", json=ENDLESS, timeout=0.3)
    wait_until(lambda: metrics(tiny.url)["requests_processing"] == 0)
    assert metrics(tiny.url)["kv_cells_used"] == 0


def test_a_killed_server_starts_again_on_its_port(tiny_model: Path) -> None:
    body = ENDLESS | {"max_tokens": 5}
    with ServerProcess("-m", str(tiny_model)) as server:
        port = server.url.rpartition(":")[2]
        with open_stream(server.url, ENDLESS):
            server.process.kill()
            server.process.wait(5)
    with ServerProcess("-m", str(tiny_model), "--port", port) as server:
        assert complete(server.url, body)["finish_reason"] == "length"


def test_a_taken_port_is_one_line(tiny: ServerProcess, tiny_model: Path) -> None:
    port = tiny.url.rpartition(":")[2]
    command = [sys.executable, "-m", "kvalet", "serve", "-m", str(tiny_model), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert port in done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_request_to_try_works_as_printed(tiny: ServerProcess) -> None:
    command = tiny.output()[tiny.output().index("curl ") :]
    command = command.replace('"messages"', '"max_tokens": 3, "messages"')
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 3


def test_health_answers(tiny: ServerProcess) -> None:
    answer = httpx.get(f"{tiny.url}/health", timeout=TIMEOUT_S)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
