"""A first walk over a GGUF header: its strings, and the faults ggml's reader would die of.

ggml's reader divides by dimensions and asserts that a key has a name and the alignment its type,
which ends the process; and it hands strings out one foreign call at a time, cut at a NUL. So
strings are taken here, and whatever passes `walk` is safe to give to ggml, which reads the rest.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Final, TypeAlias

from kvalet.errors import ModelFileError

Buffer: TypeAlias = bytes | mmap

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_DIMS: Final = 4
ALIGNMENT_KEY: Final = "general.alignment"

UINT32: Final = 4
STRING: Final = 8
ARRAY: Final = 9
# bytes of one value, by GGUF type; the types missing here are STRING and ARRAY
SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Key:
    """One metadata key, in file order. `strings` is None where the value is not text."""

    name: str
    is_array: bool
    strings: tuple[str, ...] | None


def walk(data: Buffer) -> tuple[Key, ...]:
    """The keys of a header. Raises ModelFileError for whatever ggml's reader must not be
    given; the message is the fault alone, as the file's name is not known here."""
    cursor = _Cursor(data)
    num_tensors, num_keys = _preamble(cursor)
    keys = tuple(_keys(cursor, num_keys))
    for _ in range(num_tensors):
        _check_tensor(cursor)
    return keys


class _Cursor:
    """A position in the header that cannot pass its end."""

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self._end = len(data)
        self._position = 0
        self.place = "the first bytes"  # for the message, if the file ends here

    def skip(self, num_bytes: int) -> int:
        """Pass over `num_bytes`; returns where they began."""
        start = self._position
        if num_bytes > self._end - start:
            raise ModelFileError(f"truncated in {self.place}")
        self._position = start + num_bytes
        return start

    def u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self.skip(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self.skip(8))[0]
        return value

    def raw(self, num_bytes: int) -> bytes:
        start = self.skip(num_bytes)
        return self._data[start : start + num_bytes]

    def text(self) -> str:
        return self.raw(self.u64()).decode("utf-8", "surrogateescape")

    def texts(self, count: int) -> tuple[str, ...]:
        """`count` strings; one loop without calls, as vocabularies have 262,144 of them."""
        data, position, end, read = self._data, self._position, self._end, _U64.unpack_from
        found: list[str] = []
        for _ in range(count):
            start = position + 8
            position = start + read(data, position)[0] if start <= end else end + 1
            if position > end:
                raise ModelFileError(f"truncated in {self.place}")
            found.append(data[start:position].decode("utf-8", "surrogateescape"))
        self._position = position
        return tuple(found)


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    magic = cursor.raw(4)
    if magic != MAGIC:
        raise ModelFileError(f"not a GGUF file (it begins with {magic!r})")
    version = cursor.u32()
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise ModelFileError("big-endian GGUF files are not supported")
    if version not in VERSIONS:
        raise ModelFileError(f"GGUF version {version} is not supported (versions 2 and 3 are)")
    return cursor.u64(), cursor.u64()


def _keys(cursor: _Cursor, count: int) -> Iterator[Key]:
    for index in range(count):
        cursor.place = f"metadata key {index + 1} of {count}"
        name = cursor.text()
        if not name:
            raise ModelFileError(f"metadata key {index + 1} of {count} has no name")
        cursor.place = f"metadata key {name!r}"
        yield _value(cursor, name)


def _value(cursor: _Cursor, name: str) -> Key:
    kind, count, is_array = cursor.u32(), 1, False
    if name == ALIGNMENT_KEY and kind != UINT32:
        raise ModelFileError(f"{ALIGNMENT_KEY!r} is not a 32-bit integer")
    if kind == ARRAY:
        kind, count, is_array = cursor.u32(), cursor.u64(), True
    if kind == STRING:
        return Key(name, is_array, cursor.texts(count))
    if kind not in SCALAR_BYTES:
        raise ModelFileError(f"metadata key {name!r} has the unknown type {kind}")
    cursor.skip(count * SCALAR_BYTES[kind])
    return Key(name, is_array, None)


def _check_tensor(cursor: _Cursor) -> None:
    cursor.place = "the list of tensors"
    name = cursor.text()
    num_dims = cursor.u32()
    if num_dims > MAX_DIMS:
        raise ModelFileError(f"tensor {name!r} has {num_dims} dimensions (at most {MAX_DIMS})")
    if not all(cursor.u64() for _ in range(num_dims)):
        raise ModelFileError(f"tensor {name!r} has a dimension of 0")
    cursor.u32()
    cursor.u64()
