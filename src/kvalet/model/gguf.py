"""A GGUF file, opened by memory map and read with ggml's own reader.

Owns the map: addresses it gives are valid until `close`. Knows no architecture; what a key means is
its reader's business. A file that opens is whole: every tensor lies inside it.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeAlias

import ggml
import numpy as np

from kvalet.errors import ModelFileError
from kvalet.model.header import Key, walk

NumberArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value: TypeAlias = int | float | bool | str | tuple[str, ...] | NumberArray

# GGUF type -> (numpy type of an array's elements, ggml's function for a single value)
_NUMBERS: Final[dict[int, tuple[type[np.generic], Callable[[int, int], Any]]]] = {
    ggml.GGUF_TYPE_UINT8: (np.uint8, ggml.gguf_get_val_u8),
    ggml.GGUF_TYPE_INT8: (np.int8, ggml.gguf_get_val_i8),
    ggml.GGUF_TYPE_UINT16: (np.uint16, ggml.gguf_get_val_u16),
    ggml.GGUF_TYPE_INT16: (np.int16, ggml.gguf_get_val_i16),
    ggml.GGUF_TYPE_UINT32: (np.uint32, ggml.gguf_get_val_u32),
    ggml.GGUF_TYPE_INT32: (np.int32, ggml.gguf_get_val_i32),
    ggml.GGUF_TYPE_FLOAT32: (np.float32, ggml.gguf_get_val_f32),
    ggml.GGUF_TYPE_BOOL: (np.bool_, ggml.gguf_get_val_bool),
    ggml.GGUF_TYPE_UINT64: (np.uint64, ggml.gguf_get_val_u64),
    ggml.GGUF_TYPE_INT64: (np.int64, ggml.gguf_get_val_i64),
    ggml.GGUF_TYPE_FLOAT64: (np.float64, ggml.gguf_get_val_f64),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is. `shape` is in ggml's order: the row length first."""

    name: str
    type: int  # ggml_type
    type_name: str
    shape: tuple[int, ...]  # without trailing ones
    offset: int  # bytes from the start of the file
    num_bytes: int


class GGUFFile:
    """An open model file: `path`, `metadata` by key, `tensors` by name."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        """Use `open`. Takes over the map. Raises ModelFileError."""
        self.path = path
        self.num_bytes = len(mapping)
        self._map = mapping
        self._base = _address_of(mapping)
        try:
            keys = walk(mapping)
            with _reader(self._base, self.num_bytes) as (reader, tensor_context):
                self.metadata: Mapping[str, Value] = MappingProxyType(_metadata(reader, keys))
                self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
                    {tensor.name: tensor for tensor in _tensors(reader, tensor_context)}
                )
            _check_inside(self.tensors, self.num_bytes)
            _check_undivided(self.metadata)
        except ModelFileError as fault:
            raise ModelFileError(f"{path}: {fault}") from None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Map and read a file. Raises ModelFileError: one line with the file and its fault."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFileError(f"{path}: {error.strerror or error}") from None
        except ValueError:
            raise ModelFileError(f"{path}: the file is empty") from None
        try:
            return cls(path, mapping)
        except ModelFileError:
            mapping.close()
            raise

    def close(self) -> None:
        """Unmap; addresses given before are dangling afterwards. Safe to call twice."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def address(self, tensor: TensorInfo) -> int:
        """Pointer to the tensor's bytes in the map; read-only, valid until `close`."""
        if self._map.closed:
            raise ValueError(f"{self.path} is closed")
        return self._base + tensor.offset

    def drop_resident(self) -> None:
        """Let go of the map's pages in memory; they are read from the file again when touched."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def content(self, offset: int, num_bytes: int) -> bytes:
        """Of the file, from byte `offset` on."""
        return self._map[offset : offset + num_bytes]

    def fetch_ahead(self, offset: int, num_bytes: int) -> None:
        """Have what `content` would give read from the disk, without waiting for it."""
        start = offset - offset % mmap.PAGESIZE  # as the system wants it
        self._map.madvise(mmap.MADV_WILLNEED, start, offset + num_bytes - start)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number. Like its siblings, raises ModelFileError naming a key that is missing
        (unless there is a default) or of another type."""
        value = self._value(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._mistyped(key, "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._mistyped(key, "a number")

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if isinstance(value, bool):
            return value
        raise self._mistyped(key, "a boolean")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        raise self._mistyped(key, "a string")

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Strings; bytes that are not UTF-8 are kept as surrogates (`surrogateescape`)."""
        value = self._value(key, default)
        if isinstance(value, tuple):
            return value
        raise self._mistyped(key, "a list of strings")

    def numbers(self, key: str, default: NumberArray | None = None) -> NumberArray:
        value = self._value(key, default)
        if isinstance(value, np.ndarray):
            return value
        raise self._mistyped(key, "a list of numbers")

    def _value(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFileError(f"{self.path}: the metadata key {key!r} is missing")
        return value

    def _mistyped(self, key: str, wanted: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: the metadata key {key!r} is not {wanted}")


def _address_of(mapping: mmap.mmap) -> int:
    # numpy alone gives the address of a read-only map; kept, the array would block closing it
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)


@contextmanager
def _reader(base: int, num_bytes: int) -> Iterator[tuple[int, ctypes.c_void_p]]:
    """ggml's reader over a header that `walk` has passed, and its context of data-less tensors."""
    tensor_context = ggml.ggml_context_p_ctypes()
    params = ggml.gguf_init_params(no_alloc=True, ctx=ctypes.pointer(tensor_context))
    with _captured_log() as complaints:
        reader = ggml.gguf_init_from_buffer(base, num_bytes, params)
    if not reader:
        raise ModelFileError(complaints[0] if complaints else "ggml cannot read it")
    try:
        yield reader, tensor_context
    finally:
        ggml.gguf_free(reader)
        ggml.ggml_free(tensor_context)


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """ggml's complaints as lines, most specific first, instead of on stderr."""
    lines: list[str] = []

    def keep(_level: int, text: bytes, _user: object) -> None:
        lines.append(text.decode("utf-8", "replace").strip().partition(": ")[2])

    callback = ggml.ggml_log_callback(keep)
    before = ggml.ggml_log_callback()
    user = ctypes.c_void_p()
    ggml.ggml_log_get(ctypes.byref(before), ctypes.byref(user))
    ggml.ggml_log_set(callback, None)
    try:
        yield lines
    finally:
        ggml.ggml_log_set(before, user)


def _metadata(reader: int, keys: tuple[Key, ...]) -> dict[str, Value]:
    return {key.name: _value_of(reader, index, key) for index, key in enumerate(keys)}


def _value_of(reader: int, index: int, key: Key) -> Value:
    if key.strings is not None:
        return key.strings if key.is_array else key.strings[0]
    if key.is_array:
        return _number_array(reader, index)
    value: Value = _NUMBERS[ggml.gguf_get_kv_type(reader, index)][1](reader, index)
    return value


def _number_array(reader: int, index: int) -> NumberArray:
    kind = _NUMBERS[ggml.gguf_get_arr_type(reader, index)][0]
    count = ggml.gguf_get_arr_n(reader, index)
    array = np.empty(count, kind)
    if count:
        ctypes.memmove(array.ctypes.data, ggml.gguf_get_arr_data(reader, index), array.nbytes)
    array.flags.writeable = False
    return array


def _tensors(reader: int, tensor_context: ctypes.c_void_p) -> Iterator[TensorInfo]:
    data_offset = ggml.gguf_get_data_offset(reader)
    tensor = ggml.ggml_get_first_tensor(tensor_context)
    for index in range(ggml.gguf_get_n_tensors(reader)):
        kind = ggml.gguf_get_tensor_type(reader, index)
        yield TensorInfo(
            name=ggml.gguf_get_tensor_name(reader, index).decode("utf-8", "surrogateescape"),
            type=kind,
            type_name=ggml.ggml_type_name(kind).decode(),
            shape=tuple(tensor.contents.ne[: ggml.ggml_n_dims(tensor)]),
            offset=data_offset + ggml.gguf_get_tensor_offset(reader, index),
            num_bytes=ggml.gguf_get_tensor_size(reader, index),
        )
        tensor = ggml.ggml_get_next_tensor(tensor_context, tensor)


def _check_inside(tensors: Mapping[str, TensorInfo], num_bytes: int) -> None:
    for tensor in tensors.values():
        end = tensor.offset + tensor.num_bytes
        if end > num_bytes:
            raise ModelFileError(
                f"truncated: tensor {tensor.name!r} ends at byte {end}, the file has {num_bytes}"
            )


def _check_undivided(metadata: Mapping[str, Value]) -> None:
    num_parts = metadata.get("split.count", 1)
    if isinstance(num_parts, int) and num_parts > 1:
        raise ModelFileError(f"one of {num_parts} parts of a model; join them into one file first")
