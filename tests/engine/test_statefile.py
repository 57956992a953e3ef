"""State files: what is written is read, and whatever is not that is refused by name."""

import os
import struct
import tracemalloc
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.engine.host.statefile import (
    ALIGNMENT,
    MAGIC,
    MAX_PAGES,
    open_state,
    pages_offset,
    read_header,
    write_state,
)
from kvalet.errors import EngineError, StateFileError, StateFileGone

ROOT = bytes(range(32))
PAGE_BYTES = 6000
PAGES = [bytes([number]) * PAGE_BYTES for number in (1, 2, 3)]
TOKENS = tuple(range(2**32 - 96, 2**32))
FIXED_BYTES, DIGEST_END = 64, 96
END_OF_TOKENS = DIGEST_END + 4 * len(TOKENS)
OFFSET = 4096


def write(path: Path, tokens: tuple[int, ...] = TOKENS, *, durable: bool = False) -> Path:
    with write_state(path, ROOT, PAGE_BYTES, len(PAGES), tokens, durable=durable) as add:
        for page in PAGES:
            add(page)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "state")


def refusal(path: Path, root: bytes = ROOT, page_bytes: int = PAGE_BYTES) -> str:
    with pytest.raises(StateFileError) as caught:
        read_header(path, root, page_bytes)
    assert caught.value.field == "filename"
    assert caught.value.status == 400
    assert path.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("tokens", [(), TOKENS], ids=["pages only", "with tokens"])
def test_what_was_written_is_read(tmp_path: Path, tokens: tuple[int, ...], durable: bool) -> None:
    path = write(tmp_path / "state", tokens, durable=durable)
    header = read_header(path, ROOT, PAGE_BYTES)
    assert (header.tokens, header.num_pages) == (tokens, 3)
    assert header.offset % ALIGNMENT == 0
    assert path.stat().st_size == header.offset + 3 * PAGE_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    with open_state(path, ROOT, PAGE_BYTES) as state:
        for index in (2, 0, 1):
            page = bytearray(PAGE_BYTES)
            state.read(index, memoryview(page))
            assert page == PAGES[index]


def test_the_format_is_the_documented_one(path: Path) -> None:
    data = path.read_bytes()
    fixed = struct.pack("<8sIIQII32s", MAGIC, 1, 32, PAGE_BYTES, 3, 96, ROOT)
    digests = [blake2b(page, digest_size=32).digest() for page in PAGES]
    rest = b"".join([struct.pack("<96I", *TOKENS), *digests]).ljust(OFFSET - DIGEST_END, b"\0")
    digest = blake2b(fixed + rest, digest_size=32).digest()
    assert data == fixed + digest + rest + b"".join(PAGES)


CUTS = {
    "in the magic": 5,
    "after the magic": 8,
    "in the numbers": 20,
    "before the digest": FIXED_BYTES,
    "in the digest": FIXED_BYTES + 1,
    "before the tokens": DIGEST_END,
    "in the tokens": DIGEST_END + 5,
    "before the page digests": END_OF_TOKENS,
    "in the page digests": END_OF_TOKENS + 40,
    "in the padding": OFFSET - 1,
    "before the pages": OFFSET,
    "in a page": OFFSET + PAGE_BYTES // 2,
    "between pages": OFFSET + 2 * PAGE_BYTES,
    "before the last byte": OFFSET + 3 * PAGE_BYTES - 1,
}


@pytest.mark.parametrize("size", CUTS.values(), ids=CUTS)
def test_a_file_that_is_cut_short_is_refused(path: Path, size: int) -> None:
    os.truncate(path, size)
    assert ("is cut short" if size >= len(MAGIC) else "not a state file") in refusal(path)


def test_bytes_after_the_end_are_refused(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 7)
    assert "7 bytes after its end" in refusal(path)


def test_no_byte_of_the_header_may_change(path: Path) -> None:
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in range(OFFSET):
            os.pwrite(file.fileno(), bytes([data[at] ^ 0x10]), at)
            refusal(path)
            os.pwrite(file.fileno(), data[at : at + 1], at)
    read_header(path, ROOT, PAGE_BYTES)


def test_a_flipped_bit_of_a_page_is_found_and_other_pages_are_read(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[OFFSET + 2 * PAGE_BYTES - 1] ^= 0x80
    path.write_bytes(data)
    page = memoryview(bytearray(PAGE_BYTES))
    with open_state(path, ROOT, PAGE_BYTES) as state:
        state.read(0, page)
        state.read(2, page)
        with pytest.raises(StateFileError, match="state: page 1 is damaged"):
            state.read(1, page)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_page_that_the_file_has_not(path: Path, index: int) -> None:
    page = memoryview(bytearray(PAGE_BYTES))
    with (
        open_state(path, ROOT, PAGE_BYTES) as state,
        pytest.raises(EngineError, match=f"no page {index}"),
    ):
        state.read(index, page)


def test_a_file_that_shrinks_while_it_is_read(path: Path) -> None:
    with open_state(path, ROOT, PAGE_BYTES) as state:
        os.truncate(path, OFFSET + PAGE_BYTES)
        with pytest.raises(StateFileError, match="page 1 is damaged"):
            state.read(1, memoryview(bytearray(PAGE_BYTES)))


def test_another_model_s_file_is_refused(path: Path) -> None:
    assert "another model or build" in refusal(path, root=ROOT[::-1])


def test_another_page_size_is_refused(path: Path) -> None:
    assert "(32, 6000), not (32, 6016)" in refusal(path, page_bytes=6016)


def forge(path: Path, **changes: int) -> None:
    """A header with other numbers and the digest that goes with them."""
    names = ("magic", "version", "cells", "page_bytes", "num_pages", "num_tokens", "root")
    data = path.read_bytes()
    values = dict(zip(names, struct.unpack_from("<8sIIQII32s", data), strict=True)) | changes
    fixed = struct.pack("<8sIIQII32s", *values.values())
    offset = pages_offset(values["num_pages"], values["num_tokens"])
    rest = data[DIGEST_END:].ljust(offset - DIGEST_END, b"\0")
    digest = blake2b(fixed + rest[: offset - DIGEST_END], digest_size=32).digest()
    path.write_bytes(fixed + digest + rest)


FORGERIES = {
    "version": ({"version": 2}, "has version 2, this server reads 1"),
    "cells": ({"cells": 16}, r"pages of \(cells, bytes\) \(16, 6000\)"),
    "too few tokens": ({"num_tokens": 95}, "has 95 tokens in 3 pages"),
    "too few pages": ({"num_pages": 2, "num_tokens": 64}, "bytes after its end"),
    "too many pages": ({"num_pages": 4, "num_tokens": 128}, "is cut short"),
}


@pytest.mark.parametrize(("changes", "reason"), FORGERIES.values(), ids=FORGERIES)
def test_a_header_that_contradicts_itself_is_refused(
    path: Path, changes: dict[str, int], reason: str
) -> None:
    forge(path, **changes)
    with pytest.raises(StateFileError, match=reason):
        read_header(path, ROOT, PAGE_BYTES)


Counts = tuple[int, int]  # pages, tokens
LARGEST: Counts = (2**17, 2**22)
ALLOCATES_NOTHING = {
    "pages beyond the limit": ((2**21, 0), {}, "damaged header"),
    "tokens without pages": ((0, 2**26), {}, "67108864 tokens in 0 pages"),
    "all ones": ((2**32 - 1, 2**32 - 1), {}, "damaged header"),
    "another size": (LARGEST, {}, "bytes after its end"),
    "another engine": (LARGEST, {"fingerprint": ROOT[::-1]}, "another model"),
    "another page": (LARGEST, {"page_bytes": 6016}, "pages of"),
    "too many tokens": (LARGEST, {"max_tokens": 2**22 - 1}, "4194304 tokens, more than n_ctx"),
}


@pytest.mark.parametrize(
    ("counts", "reader", "reason"), ALLOCATES_NOTHING.values(), ids=ALLOCATES_NOTHING
)
def test_a_hostile_header_allocates_nothing(
    tmp_path: Path, counts: Counts, reader: dict[str, Any], reason: str
) -> None:
    """The file is as large as it claims, without using the disk; nothing of it is read but its
    numbers."""
    path = tmp_path / "hostile"
    path.write_bytes(struct.pack("<8sIIQII32s", MAGIC, 1, 32, PAGE_BYTES, *counts, ROOT))
    os.truncate(path, 2**38)
    tracemalloc.start()
    try:
        with pytest.raises(StateFileError, match=reason):
            read_header(path, **{"fingerprint": ROOT, "page_bytes": PAGE_BYTES, **reader})
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_disk_that_fails_is_not_the_files_fault() -> None:
    """Linux has no byte at the start of a process, and says so as a broken disk would."""
    with pytest.raises(EngineError, match="state file mem: Input/output error"):
        read_header(Path("/proc/self/mem"), ROOT, PAGE_BYTES)


def test_a_file_that_vanished_is_told_from_one_that_is_bad(tmp_path: Path) -> None:
    with pytest.raises(StateFileGone, match="there is no state file gone"):
        read_header(tmp_path / "gone", ROOT, PAGE_BYTES)


def test_more_tokens_than_the_reader_takes(path: Path) -> None:
    assert read_header(path, ROOT, PAGE_BYTES, max_tokens=96).tokens == TOKENS
    with pytest.raises(StateFileError, match="state file state holds 96 tokens, more than n_ctx"):
        read_header(path, ROOT, PAGE_BYTES, max_tokens=95)


def test_a_header_of_the_largest_size_is_read_in_one_pass(tmp_path: Path) -> None:
    """Copying what follows each digest would copy 275 GB."""
    with write_state(tmp_path / "state", ROOT, 1, MAX_PAGES, durable=False) as add:
        for index in range(MAX_PAGES):
            add(bytes([index % 256]))
    header = read_header(tmp_path / "state", ROOT, 1)
    assert len(header.digests) == MAX_PAGES
    assert set(header.digests) == {
        blake2b(bytes([byte]), digest_size=32).digest() for byte in range(256)
    }


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe that nobody writes to is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert "is not a file" in refusal(tmp_path / "pipe")
    assert "is not a file" in refusal(tmp_path / "folder")


@given(data=st.binary(max_size=200), prefix=st.sampled_from([b"", MAGIC, MAGIC + b"\1\0\0\0"]))
def test_arbitrary_bytes_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, prefix: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary"
    path.write_bytes(prefix + data)
    refusal(path)


def ends_by_an_exception(add: Callable[[bytes], bytes]) -> None:
    raise EngineError("the second page cannot be read")


def fails_to_write(add: Callable[[bytes], bytes]) -> None:
    raise OSError(28, "No space left on device")


def ends_too_early(add: Callable[[bytes], bytes]) -> None:
    pass


@pytest.mark.parametrize("end", [ends_by_an_exception, fails_to_write, ends_too_early])
def test_a_write_that_fails_midway_leaves_the_older_file(
    path: Path, end: Callable[[Callable[[bytes], bytes]], None]
) -> None:
    def rewrite() -> None:
        with write_state(path, ROOT, PAGE_BYTES, 3, TOKENS, durable=True) as add:
            add(PAGES[2])
            end(add)

    before = path.read_bytes()
    with pytest.raises(EngineError):
        rewrite()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_take_its_name_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(EngineError, match="cannot write taken"):
        write(tmp_path / "taken")
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot write state: No such file"):
        write(tmp_path / "missing" / "state")


@pytest.mark.parametrize(("num_pages", "num_tokens"), [(2**17 + 1, 0), (3, 95), (0, 1)])
def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, num_pages: int, num_tokens: int
) -> None:
    with (
        pytest.raises(EngineError),
        write_state(
            tmp_path / "state", ROOT, PAGE_BYTES, num_pages, (1,) * num_tokens, durable=False
        ),
    ):
        pass
    assert not list(tmp_path.iterdir())
