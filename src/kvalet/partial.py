"""What is written under another name until it is whole, and what dead processes left of it.

The process that writes a file or fills a folder holds a lock (`flock`) on it. The system lets go of
a lock when its process ends in whatever way, so what can be locked has no owner and is removed.
Other files are never touched, and links are not followed.
"""

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

PREFIX: Final = ".kvalet-"
SUFFIX: Final = ".partial"
OUR_NAME: Final = re.compile(rf"{re.escape(PREFIX)}[a-z0-9_]{{8}}{re.escape(SUFFIX)}")

logger = logging.getLogger(__name__)


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file, readable for its owner only, that takes the place of `path` when the block has
    ended, on the disk itself if `durable`; if that fails, or the block does, there is no trace of
    it. Raises OSError."""
    handle, name = _new_file(path.parent)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
            os.replace(name, path)  # while the lock is held
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    if durable:
        _sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what dead processes were writing in `folder`. Raises OSError if it cannot be read."""
    with alone_in(folder):
        for name in sorted(os.listdir(folder)):
            if OUR_NAME.fullmatch(name):
                _remove_leftover(folder / name, stat.S_ISREG, os.unlink)


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder in `parent` that is gone when the block has ended. Folders that have its prefix and
    no owner are removed first. Raises OSError."""
    ours = re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}")
    with alone_in(parent):
        for name in sorted(os.listdir(parent)):
            if ours.fullmatch(name):
                _remove_leftover(parent / name, stat.S_ISDIR, shutil.rmtree)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """No other process looks for leftovers while something new has no lock yet."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _new_file(folder: Path) -> tuple[int, str]:
    with alone_in(folder):
        handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=folder)
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle, name


def _remove_leftover(
    path: Path, is_such: Callable[[int], bool], remove: Callable[[Path], None]
) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            is_ours = is_such(found.st_mode) and found.st_uid == os.geteuid()
            if is_ours and _has_no_owner(handle):
                remove(path)
                logger.info("removed %s, which a dead process left", path)
        finally:
            os.close(handle)
    except OSError as error:
        logger.warning("cannot look at %s: %s", path, error.strerror)


def _has_no_owner(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """The new name is on the disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
