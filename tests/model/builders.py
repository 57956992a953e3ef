"""Writes small GGUF files for tests: any metadata, any F32 tensors, with the `gguf` package."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

Value = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool]


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    architecture: str = "llama",
) -> Path:
    """`tensors` are F32, by name and shape in ggml's order, filled with 0, 1, 2, ..."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, shape in (tensors or {}).items():
        values = np.arange(np.prod(shape), dtype=np.float32)
        writer.add_tensor(name, values.reshape(tuple(reversed(shape))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))
