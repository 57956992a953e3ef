"""State files: pages of keys and values, and the tokens they hold, on disk.

docs/state-files.md gives the format byte by byte. A file is written beside its name and renamed
when it is whole; it is read only after its header has proven to be intact and meant for this
engine, and every page only with the digest that the header has of it. Knows nothing of who holds
pages or where they lie in memory.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from typing_extensions import Buffer

from kvalet.core.plan import PAGE_CELLS
from kvalet.errors import EngineError, StateFileError, StateFileGone
from kvalet.partial import replacing

MAGIC: Final = b"kvalet\x1a\n"
VERSION: Final = 1
ALIGNMENT: Final = 4096  # pages start at a multiple of it
MAX_PAGES: Final = 1 << 17  # bounds what a header makes its reader allocate
DIGEST_BYTES: Final = 32
TOKEN_BYTES: Final = 4

# magic, version, cells of a page, bytes of a page, pages, tokens, fingerprint
_FIXED: Final = struct.Struct("<8sIIQII32s")


@dataclass(frozen=True, slots=True)
class StateHeader:
    tokens: tuple[int, ...]  # of all pages, or none
    num_pages: int
    digests: tuple[bytes, ...]  # of each page
    offset: int  # of the first page, in bytes


def pages_offset(num_pages: int, num_tokens: int) -> int:
    """Bytes before the first page."""
    used = _FIXED.size + DIGEST_BYTES + TOKEN_BYTES * num_tokens + DIGEST_BYTES * num_pages
    return -(-used // ALIGNMENT) * ALIGNMENT


def file_bytes(num_tokens: int, page_bytes: int) -> int:
    """Size of a file of whole pages with their tokens."""
    num_pages = num_tokens // PAGE_CELLS
    return pages_offset(num_pages, num_tokens) + num_pages * page_bytes


def read_header(
    path: Path, fingerprint: bytes, page_bytes: int, max_tokens: int | None = None
) -> StateHeader:
    """What the state file at `path` holds. Raises StateFileError for one that an engine of this
    fingerprint (32 bytes), page size and `max_tokens` (its n_ctx) cannot take, EngineError if the
    disk fails; nothing that grows with the file is read of one that is not meant for it. Pages are
    not looked at."""
    with open_state(path, fingerprint, page_bytes, max_tokens) as state:
        return state.header


class StateReader:
    """An open state file whose header is in order. Made by `open_state`."""

    def __init__(self, name: str, file: BinaryIO, header: StateHeader, page_bytes: int) -> None:
        self.header = header
        self._name = name
        self._file = file
        self._page_bytes = page_bytes

    def read(self, index: int, into: memoryview) -> None:
        """Read a page into `into` [page_bytes], which is worthless after an error. Raises
        StateFileError if it is not the page that was written, EngineError if the disk fails."""
        if not 0 <= index < self.header.num_pages:
            raise EngineError(f"state file {self._name} has no page {index}")
        try:
            self._file.seek(self.header.offset + index * self._page_bytes)
            count = self._file.readinto(into)  # type: ignore[attr-defined]  # typeshed lacks it
        except OSError as error:
            raise EngineError(f"state file {self._name}: {error.strerror}") from error
        if count != self._page_bytes or _digest(into) != self.header.digests[index]:
            raise StateFileError(f"state file {self._name}: page {index} is damaged")


@contextmanager
def open_state(
    path: Path, fingerprint: bytes, page_bytes: int, max_tokens: int | None = None
) -> Iterator[StateReader]:
    """Raises what `read_header` does."""
    with _open(path) as file:
        try:
            header = _Header(path.name, file).read(fingerprint, page_bytes, max_tokens)
        except OSError as error:
            raise EngineError(f"state file {path.name}: {error.strerror}") from error
        yield StateReader(path.name, file, header, page_bytes)


@contextmanager
def write_state(
    path: Path,
    fingerprint: bytes,
    page_bytes: int,
    num_pages: int,
    tokens: tuple[int, ...] = (),
    *,
    durable: bool,
) -> Iterator[Callable[[Buffer], bytes]]:
    """Gives a function to be called with each page [page_bytes] in order; it returns the page's
    digest [32]. The file is at `path` when the block has ended, on the disk itself if `durable`; if
    it ends by an exception there is no trace of it. Raises EngineError for what cannot be written.
    """
    digests: list[bytes] = []
    _check_counts(num_pages, len(tokens))
    with _replacing(path, durable) as file:
        file.seek(pages_offset(num_pages, len(tokens)))

        def add(page: Buffer) -> bytes:
            digests.append(_digest(page))
            file.write(page)
            return digests[-1]

        yield add
        if len(digests) != num_pages:
            raise EngineError(f"{len(digests)} pages for a state file of {num_pages}")
        fixed = _FIXED.pack(
            MAGIC, VERSION, PAGE_CELLS, page_bytes, num_pages, len(tokens), fingerprint
        )
        file.seek(0)
        file.write(_header(fixed, tokens, digests))


def _check_counts(num_pages: int, num_tokens: int) -> None:
    if num_pages > MAX_PAGES:
        raise EngineError(f"{num_pages} pages: a state file takes at most {MAX_PAGES}")
    if num_tokens not in (0, num_pages * PAGE_CELLS):
        raise EngineError(f"{num_tokens} tokens do not fill {num_pages} pages")


def _header(fixed: bytes, tokens: tuple[int, ...], digests: list[bytes]) -> bytes:
    rest = np.array(tokens, "<u4").tobytes() + b"".join(digests)
    rest = rest.ljust(pages_offset(len(digests), len(tokens)) - len(fixed) - DIGEST_BYTES, b"\0")
    return fixed + _digest(fixed + rest) + rest


@contextmanager
def _replacing(path: Path, durable: bool) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` at the end. Raises EngineError."""
    try:
        with replacing(path, durable=durable) as file:
            yield file
    except OSError as error:
        raise EngineError(f"cannot write {path.name}: {error.strerror}") from error


def _open(path: Path) -> BinaryIO:
    try:
        # A pipe of that name would keep an ordinary open waiting.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise StateFileError(f"{path.name} is not a file")
        return open(handle, "rb")
    except FileNotFoundError:
        raise StateFileGone(f"there is no state file {path.name}") from None
    except OSError as error:
        raise EngineError(f"state file {path.name}: {error.strerror}") from error


class _Header:
    """Reads a header: first what is cheap to compare, then all that the digest covers."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self._size = os.fstat(file.fileno()).st_size

    def read(self, fingerprint: bytes, page_bytes: int, max_tokens: int | None) -> StateHeader:
        fixed = self._file.read(_FIXED.size)
        if not fixed.startswith(MAGIC):
            raise StateFileError(f"{self._name} is not a state file")
        self._expect(self._size >= _FIXED.size + DIGEST_BYTES, "is cut short")
        _, version, cells, size, num_pages, num_tokens, root = _FIXED.unpack(fixed)
        self._expect(version == VERSION, f"has version {version}, this server reads {VERSION}")
        self._expect(root == fingerprint, "was written with another model or build of kvalet")
        ours, theirs = (PAGE_CELLS, page_bytes), (cells, size)
        self._expect(theirs == ours, f"has pages of (cells, bytes) {theirs}, not {ours}")
        self._check_counts(num_pages, num_tokens, max_tokens)
        self._check_size(pages_offset(num_pages, num_tokens), num_pages * page_bytes)
        return self._intact(fixed, num_pages, num_tokens)

    def _check_counts(self, num_pages: int, num_tokens: int, max_tokens: int | None) -> None:
        self._expect(num_pages <= MAX_PAGES, "has a damaged header")
        self._expect(
            num_tokens in (0, num_pages * PAGE_CELLS),
            f"has {num_tokens} tokens in {num_pages} pages",
        )
        held = num_pages * PAGE_CELLS
        is_taken = max_tokens is None or held <= max_tokens
        self._expect(is_taken, f"holds {held} tokens, more than n_ctx {max_tokens}")

    def _check_size(self, offset: int, num_bytes: int) -> None:
        excess = self._size - offset - num_bytes
        self._expect(excess >= 0, "is cut short")
        self._expect(excess == 0, f"has {excess} bytes after its end")

    def _intact(self, fixed: bytes, num_pages: int, num_tokens: int) -> StateHeader:
        """What follows the numbers, up to the pages."""
        offset = pages_offset(num_pages, num_tokens)
        digest = self._file.read(DIGEST_BYTES)
        rest = self._file.read(offset - _FIXED.size - DIGEST_BYTES)
        self._expect(_digest(fixed + rest) == digest, "has a damaged header")
        tokens = np.frombuffer(rest, "<u4", num_tokens)
        starts = range(TOKEN_BYTES * num_tokens, len(rest), DIGEST_BYTES)[:num_pages]
        digests = tuple(rest[start : start + DIGEST_BYTES] for start in starts)
        return StateHeader(tuple(tokens.tolist()), num_pages, digests, offset)

    def _expect(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            raise StateFileError(f"state file {self._name} {otherwise}")


def _digest(data: Buffer) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
