"""A folder of this process's own in one that the user names, and what dead processes left there.

Whoever lives holds a lock on a file of its folder. The system lets go of a lock when its process
ends in whatever way, so a folder whose lock can be had is nobody's. Only files with our names are
ever removed.
"""

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvalet.engine.statefile import PARTIAL_PREFIX
from kvalet.errors import ConfigError

FOLDER_PREFIX: Final = "kvalet-"
LOCK_NAME: Final = "lock"
OUR_FILES: Final = ("page-*.kv", f"{PARTIAL_PREFIX}*.partial")

logger = logging.getLogger(__name__)


class OwnFolder:
    """Made empty, removed with all pages in it by `close`."""

    def __init__(self, parent: Path) -> None:
        """Removes what dead processes left in `parent`. Raises ConfigError if it is not a folder in
        which files can be made."""
        try:
            with _alone_in(parent):
                _remove_leftovers(parent)
                self.path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
                self._lock: int | None = _lock(self.path)
        except OSError as error:
            raise ConfigError(f"--preempt-disk {parent}: {error.strerror}") from error

    def close(self) -> None:
        """Safe to call twice."""
        if self._lock is not None:
            _remove(self.path)
            os.close(self._lock)
            self._lock = None


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Nobody else looks for leftovers while a new folder has no lock yet."""
    handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _lock(folder: Path) -> int:
    handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _remove_leftovers(parent: Path) -> None:
    for lock_file in sorted(parent.glob(f"{FOLDER_PREFIX}*/{LOCK_NAME}")):
        try:
            handle = os.open(lock_file, os.O_RDWR)
        except OSError as error:
            logger.warning("cannot look into %s: %s", lock_file.parent, error.strerror)
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            logger.info("removing %s, which a dead process left", lock_file.parent)
            _remove(lock_file.parent)
        finally:
            os.close(handle)


def _remove(folder: Path) -> None:
    """The lock goes last: a removal that is interrupted is taken up again at the next start."""
    try:
        for pattern in (*OUR_FILES, LOCK_NAME):
            for path in folder.glob(pattern):
                path.unlink()
        folder.rmdir()
    except OSError as error:
        logger.warning("cannot remove all of %s: %s", folder, error)
