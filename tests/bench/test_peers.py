"""`bench/peers/llama_cpp.py`, with other programs in place of both servers."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.peers import llama_cpp


@contextmanager
def serving(command: Sequence[str]) -> Iterator[str]:
    yield "http://127.0.0.1:9"


@pytest.mark.parametrize(("failing", "code"), [("exact", 1), ("none", 0)])
def test_a_benchmark_that_fails_is_told_and_the_others_are_run(
    failing: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    kvalet = tmp_path / "python"
    kvalet.write_text(f'#!/bin/sh\necho "{{\\"of\\": \\"$4\\"}}"\ntest $4 != {failing}\n')
    kvalet.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(kvalet))
    monkeypatch.setattr(sys, "argv", ["llama_cpp.py", "--peer", "x", "-m", str(kvalet)])
    monkeypatch.setattr(llama_cpp, "peer_of", lambda environment: (Path("x"), "a peer"))
    monkeypatch.setattr(llama_cpp, "serving", serving)
    monkeypatch.setattr(llama_cpp, "begin", lambda: None)
    assert llama_cpp.main() == code
    *lines, last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [json.loads(line)["of"] for line in lines] == list(llama_cpp.BENCHMARKS)
    result = json.loads(last)
    assert result["exit_codes"] == {name: int(name == failing) for name in llama_cpp.BENCHMARKS}
    assert result["exact"] == {"of": "exact"}
