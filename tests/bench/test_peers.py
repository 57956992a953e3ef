"""`bench/peers/llama_cpp.py`, with nothing measured."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import httpx
import pytest
from bench.peers import llama_cpp
from typing_extensions import override

from kvalet.bench import harness
from kvalet.bench.harness import FIRST, Benchmark
from kvalet.bench.report import Round, Row, Turn
from kvalet.bench.target import Where
from kvalet.errors import EngineError


class Absent(llama_cpp.LlamaServer):
    @override
    def __enter__(self) -> Self:
        self.url = "http://127.0.0.1:9"
        return self

    @override
    def __exit__(self, *exc: object) -> None:
        pass


def measured(first: Sequence[str], second: Sequence[str]) -> list[Round]:
    rows = {"a": Row("a", {"x": 1.0})}
    return [{FIRST: Turn(rows, first), "server 2": Turn(rows, second)}]


@pytest.mark.parametrize(
    ("first", "second", "code"), [((), (), 0), ((), ("no room",), 0), (("differs",), (), 1)]
)
def test_what_is_wrong_with_kvalet_is_the_exit_code(
    first: tuple[str, ...],
    second: tuple[str, ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    found = run(monkeypatch, tmp_path, lambda *args: measured(first, second))
    assert found == code
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(llama_cpp.BENCHMARKS) < set(result)
    assert result["exact"]["ratios"] == {"a: x": {"server 2": [1.0]}}


def test_a_benchmark_that_cannot_be_measured_is_told_and_the_others_are_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measure(tell: object, where: Where, benchmark: Benchmark) -> list[Round]:
        if benchmark is llama_cpp.BENCHMARKS["latency"]:
            raise EngineError("it is gone")
        return measured((), ())

    assert run(monkeypatch, tmp_path, measure) == 1
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["latency"] == {"error": "it is gone"}
    assert result["prefix"]["rounds"]


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, measure: Callable[..., list[Round]]) -> int:
    model = folder / "model.gguf"
    model.touch()
    monkeypatch.setattr("sys.argv", ["llama_cpp.py", "--peer", "x", "-m", str(model)])
    monkeypatch.setattr(llama_cpp, "peer_of", lambda environment: ("x", "a peer"))
    monkeypatch.setattr(llama_cpp, "LlamaServer", Absent)
    monkeypatch.setattr(llama_cpp, "end_on_sigterm", lambda: None)
    monkeypatch.setattr(harness, "measure", measure)
    return llama_cpp.main()


def test_a_peer_is_there_once_it_is_healthy_and_told_if_it_ends() -> None:
    folder = "import os, tempfile; os.chdir(tempfile.mkdtemp()); open('health', 'w')"
    serve = (
        "import sys, http.server as h; h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[2]))"
    )
    with llama_cpp.LlamaServer([sys.executable, "-c", f"{folder}; {serve}"]) as peer:
        assert httpx.get(f"{peer.url}/health").is_success
    gone = llama_cpp.LlamaServer([sys.executable, "-c", "print('no model')"])
    with pytest.raises(EngineError, match="no model"):
        gone.__enter__()
