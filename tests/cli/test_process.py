"""Commands as processes: Ctrl-C from the first moment on, an output that cannot be written to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvalet.bench.process import ServerProcess
from tests.engine.tiny_models import write_tiny_llama

TIMEOUT_S = 60
FULL = Path("/dev/full")
SERVE = ("serve", "-m", "none.gguf")

INTERRUPTED_AT = """
import os, signal, sys
from importlib.abc import MetaPathFinder

wanted = sys.argv.pop(1)

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

from kvalet.cli import main
sys.meta_path.insert(0, Interrupt())
sys.exit(main())
"""

needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.mark.parametrize(
    "module", ["argparse", "kvalet.cli.run", "kvalet.errors", "kvalet.cli.serve", "fastapi", "rich"]
)
def test_a_ctrl_c_while_parts_are_imported_is_one_line(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT, module, *SERVE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (130, "kvalet: interrupted\n")


SIMULATE = ("simulate", "--seeds", "1", "-j", "1", "--chats", "2", "--tokens", "20")


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "args", [("--help",), ("--version",), ("serve", "--help"), SIMULATE, (*SIMULATE, "--json")]
)
def test_a_full_disk_behind_stdout_is_one_line(args: tuple[str, ...], unbuffered: str) -> None:
    code, errors = _run_to_full(*args, unbuffered=unbuffered)
    assert (code, errors) == (2, "kvalet: cannot write the output: No space left on device\n")


@needs_full
def test_a_server_that_cannot_say_where_it_listens_ends(tiny: Path) -> None:
    code, errors = _run_to_full("serve", "-m", str(tiny), "--port", "0", "--exact", "off")
    assert code == 2
    assert errors.splitlines()[-1] == "kvalet: cannot write the output: No space left on device"
    assert "Traceback" not in errors


def _run_to_full(*args: str, unbuffered: str = "") -> tuple[int, str]:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvalet", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("args", [("--version",), (*SIMULATE, "--json")])
def test_a_closed_stdout_is_no_error(args: tuple[str, ...]) -> None:
    command = 'exec "$0" -m kvalet "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_ends_the_command_silently() -> None:
    command = '"$0" -m kvalet "$@" | :; exit "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, *SIMULATE, "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "")


def test_what_a_killed_save_left_is_removed_at_the_start(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / ".kvalet-0a1b2c3d.partial").write_bytes(b"half")
    (tmp_path / "saved").write_bytes(b"whole")
    with ServerProcess("-m", str(tiny), "--slot-save-path", str(tmp_path)):
        assert [path.name for path in tmp_path.iterdir()] == ["saved"]
