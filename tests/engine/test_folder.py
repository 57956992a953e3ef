"""The disk tier's folders: who owns them, what the dead leave, what is not ours."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvalet.engine.host.folder import LOCK_TEXT, OwnFolder
from kvalet.errors import ConfigError

OWNER = """
import sys, time
from pathlib import Path
from kvalet.engine.host.folder import OwnFolder

folder = OwnFolder(Path(sys.argv[1]))
(folder.path / "page-3.kv").write_bytes(b"state")
(folder.path / ".kvalet-12345678.partial").write_bytes(b"sta")
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


def leave(folder: Path, lock: bytes = LOCK_TEXT) -> Path:
    """What a dead process leaves, with that content in its lock."""
    folder.mkdir()
    (folder / "lock").write_bytes(lock)
    (folder / "page-1.kv").write_text("state")
    return folder


def start(parent: Path) -> None:
    with closing(OwnFolder(parent)):
        pass


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["kvalet-notes", "kvalet-12345678x", "kvalet-ABCDEFGH", "kvalet-"])
def test_a_folder_by_another_name_stays(tmp_path: Path, name: str) -> None:
    folder = leave(tmp_path / name)
    start(tmp_path)
    assert names(folder) == {"lock", "page-1.kv"}


@pytest.mark.parametrize("lock", [b"", b"my own", LOCK_TEXT[:-1], LOCK_TEXT + b"x"])
def test_a_folder_whose_lock_is_not_ours_stays(tmp_path: Path, lock: bytes) -> None:
    folder = leave(tmp_path / "kvalet-12345678", lock)
    start(tmp_path)
    assert names(folder) == {"lock", "page-1.kv"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither that of a folder, nor of a lock, nor of a page; a pipe is not waited for."""
    shared = tmp_path / "shared"
    shared.mkdir()
    victim = leave(tmp_path / "victim")
    (shared / "kvalet-linked_0").symlink_to(victim)
    by_lock, by_pipe = leave(shared / "kvalet-linked_1"), leave(shared / "kvalet-linked_2")
    for folder in (by_lock, by_pipe):
        (folder / "lock").unlink()
    (by_lock / "lock").symlink_to(victim / "lock")
    os.mkfifo(by_pipe / "lock")
    by_page = leave(shared / "kvalet-linked_3")
    (by_page / "page-2.kv").symlink_to(victim / "page-1.kv")
    start(shared)
    for folder in (victim, by_lock, by_pipe):
        assert names(folder) == {"lock", "page-1.kv"}
    assert names(by_page) == {"page-2.kv"}


def test_another_user_s_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = leave(tmp_path / "kvalet-12345678")
    owner_id = folder.stat().st_uid
    monkeypatch.setattr("kvalet.engine.host.folder.os.geteuid", lambda: owner_id + 1)
    start(tmp_path)
    assert names(folder) == {"lock", "page-1.kv"}


def test_what_else_is_in_a_dead_one_s_folder_stays_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = leave(tmp_path / "kvalet-12345678")
    others = {"page-precious.kv", "page-2.kv.old", ".kvalet-half.partial", "todo.txt"}
    for name in others:
        (folder / name).write_text("mine")
    (folder / "page-3.kv").mkdir()
    start(tmp_path)
    assert names(folder) == others | {"page-3.kv"}
    start(tmp_path)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [f"cannot remove all of {folder}: Directory not empty"]


def test_a_folder_that_cannot_be_used_is_an_error_of_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "missing"):
        with pytest.raises(ConfigError, match=f"--preempt-disk .*{name}"):
            OwnFolder(tmp_path / name)


def test_a_folder_where_nothing_can_be_written() -> None:
    """/proc takes no new folders, not even from root."""
    with pytest.raises(ConfigError, match="--preempt-disk /proc"):
        OwnFolder(Path("/proc"))
