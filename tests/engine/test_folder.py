"""The disk tier's folders: who owns them, what the dead leave, what is not ours."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvalet.engine.ggml.folder import OwnFolder
from kvalet.errors import ConfigError

OWNER = """
import sys, time
from pathlib import Path
from kvalet.engine.ggml.folder import OwnFolder

folder = OwnFolder(Path(sys.argv[1]))
(folder.path / "page-3.kv").write_bytes(b"state")
(folder.path / ".kvalet-half.partial").write_bytes(b"sta")
print(folder.path, flush=True)
time.sleep(600)
"""


@contextmanager
def owner(parent: Path) -> Iterator[Path]:
    """A process that holds a folder in `parent`; killed at the end."""
    run = [sys.executable, "-c", OWNER, str(parent)]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert path.is_dir()
        try:
            yield path
        finally:
            process.send_signal(signal.SIGKILL)


def test_what_a_killed_process_left_is_removed_and_a_living_one_s_kept(tmp_path: Path) -> None:
    with owner(tmp_path) as living:
        with owner(tmp_path) as dead:
            pass
        assert (dead / "page-3.kv").exists()
        with closing(OwnFolder(tmp_path)) as folder:
            assert not dead.exists()
            assert (living / "page-3.kv").read_bytes() == b"state"
            assert sorted(tmp_path.iterdir()) == sorted([living, folder.path])
        assert list(tmp_path.iterdir()) == [living]


def test_two_engines_of_one_process_keep_apart(tmp_path: Path) -> None:
    first, second = OwnFolder(tmp_path), OwnFolder(tmp_path)
    assert first.path.is_dir()
    assert first.path != second.path
    first.close()
    assert second.path.is_dir()
    second.close()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Folders of that name without our lock, and what somebody else put beside our files."""
    (tmp_path / "kvalet-notes").mkdir()
    (tmp_path / "kvalet-notes" / "page-1.kv").write_text("mine")
    (tmp_path / "page-1.kv").write_text("mine")
    folder = OwnFolder(tmp_path)
    (folder.path / "diary").write_text("mine")
    (folder.path / "page-1.kv").write_text("ours")
    folder.close()
    with closing(OwnFolder(tmp_path)):
        pass
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.kv")) == [
        "kvalet-notes/page-1.kv",
        "page-1.kv",
    ]
    assert (folder.path / "diary").read_text() == "mine"


def test_a_folder_that_cannot_be_used_is_an_error_of_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "missing"):
        with pytest.raises(ConfigError, match=f"--preempt-disk .*{name}"):
            OwnFolder(tmp_path / name)


def test_a_folder_where_nothing_can_be_written() -> None:
    """/proc takes no new folders, not even from root."""
    with pytest.raises(ConfigError, match="--preempt-disk /proc"):
        OwnFolder(Path("/proc"))
