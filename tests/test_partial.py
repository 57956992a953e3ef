"""Files under way, and what is left of them by processes that were killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvalet.engine.ggml.cache import FactCache
from kvalet.partial import OUR_NAME, remove_leftovers, replacing, scratch_folder

LEFT = ".kvalet-0a1b2c3d.partial"
SCRATCH = ".model-0a1b2c3d"

WRITES = """
import sys, time
from pathlib import Path
from kvalet.partial import replacing, scratch_folder
folder = Path(sys.argv[1])
with replacing(folder / "state") as file, scratch_folder(folder, ".model-") as scratch:
    file.write(b"half")
    file.flush()
    (scratch / "wheel").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a file and of a folder."""
    command = [sys.executable, "-c", WRITES, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    with writer(tmp_path):
        before = names(tmp_path)
        assert len(before) == 2
        remove_leftovers(tmp_path)
        with scratch_folder(tmp_path, ".model-"):
            assert before < names(tmp_path)
        assert names(tmp_path) == before


def test_what_a_killed_process_wrote_is_removed(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    assert sum(bool(OUR_NAME.fullmatch(name)) for name in names(tmp_path)) == 1
    remove_leftovers(tmp_path)
    with scratch_folder(tmp_path, ".model-") as scratch:
        assert names(tmp_path) == {scratch.name}
    assert names(tmp_path) == set()


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    (tmp_path / "saved").write_bytes(b"whole")
    (tmp_path / ".kvalet-half.partial").write_bytes(b"not ours")
    (tmp_path / LEFT).symlink_to(tmp_path / "saved")
    (tmp_path / ".kvalet-folder00.partial").mkdir()
    os.mkfifo(tmp_path / ".kvalet-pipe0000.partial")
    before = names(tmp_path)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == before
    (tmp_path / SCRATCH).symlink_to(tmp_path / ".kvalet-folder00.partial")
    with scratch_folder(tmp_path, ".model-"):
        pass
    assert names(tmp_path) == before | {SCRATCH}


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with replacing(path, durable=True) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")  # type: ignore[call-overload]
    assert (path.read_bytes(), names(tmp_path)) == (b"new", {"state"})


def test_a_fact_is_kept_whole_and_leftovers_are_cleared(tmp_path: Path) -> None:
    (tmp_path / LEFT).write_bytes(b"{")
    cache = FactCache(tmp_path)
    cache.put({"a": 1}, "key")
    assert cache.get("key") == {"a": 1}
    assert len(names(tmp_path)) == 1
