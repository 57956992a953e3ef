"""A folder of this process's own in one that the user names, and what dead processes left there.

Whoever lives holds a lock on a file of its folder. The system lets go of a lock when its process
ends in whatever way, so a folder whose lock can be had is nobody's. The named folder may hold
anything else, also by names like ours: a folder is only taken for ours if its lock says so, links
are never followed, and only files with our names are removed.
"""

import fcntl
import logging
import os
import re
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvalet.errors import ConfigError
from kvalet.partial import OUR_NAME, alone_in

FOLDER_PREFIX: Final = "kvalet-"
LOCK_NAME: Final = "lock"
LOCK_TEXT: Final = b"kvalet preempt-disk 1\n"

_RANDOM: Final = "[a-z0-9_]{8}"  # as tempfile makes names
_OUR_FOLDER: Final = re.compile(FOLDER_PREFIX + _RANDOM)
_OUR_FILE: Final = re.compile(rf"page-[0-9]+\.kv|{OUR_NAME.pattern}")
_NO_LINK: Final = os.O_NOFOLLOW | os.O_NONBLOCK

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """A folder whose lock is ours."""

    path: Path
    folder: int
    lock: int

    def remove(self) -> None:
        """The lock goes last: a removal that is interrupted is taken up again at the next start."""
        try:
            for name in os.listdir(self.folder):
                if _OUR_FILE.fullmatch(name) and self._is_regular(name):
                    os.unlink(name, dir_fd=self.folder)
            os.unlink(LOCK_NAME, dir_fd=self.folder)
            self.path.rmdir()
        except OSError as error:
            logger.warning("cannot remove all of %s: %s", self.path, error.strerror)

    def close(self) -> None:
        os.close(self.folder)
        os.close(self.lock)

    def _is_regular(self, name: str) -> bool:
        found = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        return stat.S_ISREG(found.st_mode)


class OwnFolder:
    """Made empty, removed with all pages in it by `close`."""

    def __init__(self, parent: Path) -> None:
        """Removes what dead processes left in `parent`. Raises ConfigError if it is not a folder in
        which files can be made."""
        try:
            with alone_in(parent):
                _remove_leftovers(parent)
                self._held: _Held | None = _make(parent)
                self.path = self._held.path
        except OSError as error:
            raise ConfigError(f"--preempt-disk {parent}: {error.strerror}") from error

    def close(self) -> None:
        """Safe to call twice."""
        if self._held is not None:
            self._held.remove()
            self._held.close()
            self._held = None


def _make(parent: Path) -> _Held:
    path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    folder = _open_folder(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK
    held = _Held(path, folder, os.open(LOCK_NAME, flags, 0o600, dir_fd=folder))
    try:
        fcntl.flock(held.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(held.lock, LOCK_TEXT)
    except OSError:
        held.remove()
        held.close()
        raise
    return held


def _remove_leftovers(parent: Path) -> None:
    for name in sorted(os.listdir(parent)):
        if not _OUR_FOLDER.fullmatch(name):
            continue
        try:
            held = _take(parent / name)
        except OSError as error:
            logger.warning("cannot look into %s: %s", parent / name, error.strerror)
            continue
        if held is not None:
            logger.info("removing %s, which a dead process left", held.path)
            held.remove()
            held.close()


def _take(path: Path) -> _Held | None:
    """The folder at `path`, if it is one of ours that nobody holds."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return None
    folder = _open_folder(path)
    lock = _take_lock(folder) if os.path.samestat(found, os.fstat(folder)) else None
    if lock is None:
        os.close(folder)
        return None
    return _Held(path, folder, lock)


def _take_lock(folder: int) -> int | None:
    with suppress(OSError):  # none, or a link
        lock = os.open(LOCK_NAME, os.O_RDWR | _NO_LINK, dir_fd=folder)
        if _is_our_lock(lock):
            return lock
        os.close(lock)
    return None


def _is_our_lock(lock: int) -> bool:
    """Whether it is one that nobody holds; then it is held from now on."""
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        return False
    if os.pread(lock, len(LOCK_TEXT) + 1, 0) != LOCK_TEXT:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
