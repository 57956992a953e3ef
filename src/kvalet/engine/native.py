"""The native kernels' library: loading it and calling it.

Owns the ctypes mirror of native/kvalet.h, and picks the instruction set when loading. Knows nothing
of graphs or sequences. All instruction sets give the same bits, so the pick only changes speed.
"""

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import ggml
import numpy as np
from numpy.typing import NDArray

from kvalet.errors import EngineError

ABI = 2  # KVALET_ABI of native/kvalet.h, which this file mirrors
PAGE_CELLS = 32
CHUNK_CELLS = 256
MAX_HEAD_DIM = 512
ISAS = ("avx512vnni", "avx512", "avx2", "neon", "plain")  # best first

_FOLDER = Path(__file__).parent.parent / "native"

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]


class Pool(ctypes.Structure):
    """kvalet_pool: where the pages lie and what is constant of the model."""

    _fields_ = (
        ("base", c_void_p),
        ("page_bytes", c_int64),
        ("num_pages", c_int32),
        ("num_layers", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
    )

    def __init__(
        self,
        base: int,
        page_bytes: int,
        num_pages: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> None:
        """Raises EngineError for heads the kernels cannot take."""
        if head_dim % 16 or not 0 < head_dim <= MAX_HEAD_DIM:
            raise EngineError(f"head_dim {head_dim}: not a multiple of 16 up to {MAX_HEAD_DIM}")
        super().__init__(base, page_bytes, num_pages, num_layers, num_kv_heads, head_dim)


class Batch(ctypes.Structure):
    """kvalet_batch: the rows of the step being computed; arrays are the caller's to keep alive."""

    _fields_ = (
        ("num_rows", c_int32),
        ("num_seqs", c_int32),
        ("row_seq", c_void_p),
        ("row_cell", c_void_p),
        ("row_end", c_void_p),
        ("tables", c_void_p),
        ("table_stride", c_int32),
        ("counters", c_void_p),
        ("partials", c_void_p),
        ("partials_floats", c_int64),
    )


class Attention(ctypes.Structure):
    """kvalet_attention: userdata of one layer's graph nodes. Refers to its pool and batch by
    address, so they must outlive it."""

    _fields_ = (
        ("pool", POINTER(Pool)),
        ("batch", POINTER(Batch)),
        ("sinks", c_void_p),
        ("layer", c_int32),
        ("num_heads", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
    )


class Linear(ctypes.Structure):
    """kvalet_linear: one layer's packed weights, which the caller keeps alive. `type`: ggml's."""

    _fields_ = (
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("type", c_int32),
        ("num_in", c_int32),
        ("num_out", c_int32),
    )


class Layers(ctypes.Structure):
    """kvalet_layers: userdata of a graph node that computes layers with one input."""

    _fields_ = (("layers", POINTER(Linear)), ("num_layers", c_int32))


class Input(ctypes.Structure):
    """kvalet_input: userdata of a graph node that quantises columns."""

    _fields_ = (("weight", c_void_p), ("eps", c_float), ("num_in", c_int32))


_ATTENTION = POINTER(Attention)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "kvalet_set_tensor_layout": (None, [c_int64, c_int64, c_int64, c_int64]),
    "kvalet_write_rows": (
        None,
        [_ATTENTION, c_void_p, c_int64, c_void_p, c_int64, c_int, c_int],
    ),
    "kvalet_attend_rows": (None, [_ATTENTION, c_void_p, c_void_p, c_int, c_int, c_int]),
    "kvalet_fold_rows": (None, [_ATTENTION, c_void_p, c_int, c_int]),
    "kvalet_copy_pages": (None, [c_void_p, c_void_p, c_int64, c_int32]),
    "kvalet_fill_nan": (None, [c_void_p, c_int64]),
    "kvalet_rotate_keys": (
        None,
        [
            POINTER(Pool),
            c_void_p,
            c_int32,
            c_void_p,
            c_int32,
            c_void_p,
            c_void_p,
            c_int32,
            c_int32,
        ],
    ),
    "kvalet_packed_bytes": (c_int64, [c_int32, c_int64, c_int64]),
    "kvalet_pack": (None, [c_int32, c_void_p, c_void_p, c_int64, c_int64]),
    "kvalet_column_bytes": (c_int64, [c_int64]),
    "kvalet_quantise_rows": (None, [c_void_p, c_void_p, c_int64, c_int, c_int, c_int]),
    "kvalet_norm_rows": (
        None,
        [c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int, c_int, c_int],
    ),
    "kvalet_swiglu_rows": (None, [c_void_p, c_void_p, c_int64, c_int, c_int, c_int]),
    "kvalet_linear_rows": (
        None,
        [POINTER(Linear), c_int, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int],
    ),
    "kvalet_penalize": (
        None,
        [c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_float, c_float, c_float],
    ),
    "kvalet_top_k": (c_int32, [c_void_p, c_int32, c_int32, c_void_p, c_void_p]),
    "kvalet_logsumexp": (c_double, [c_void_p, c_int32]),
    "kvalet_argmax": (c_int32, [c_void_p, c_int32]),
    "kvalet_abi": (c_int32, []),
    "kvalet_isa": (c_char_p, []),
    "kvalet_cpu_supports": (c_int, [c_char_p]),
}


class NativeLibrary:
    """One loaded library. `write`, `attend` and `fold` are functions for ggml_custom_4d; arrays
    passed to the methods must be contiguous."""

    def __init__(self, path: Path) -> None:
        try:
            self._lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise EngineError(f"the native library {path.name} cannot be loaded: {error}") from None
        is_whole = all(hasattr(self._lib, name) for name in _PROTOTYPES)
        if not is_whole or self._lib.kvalet_abi() != ABI:
            raise EngineError(f"{path.name} was built from other sources: build it again")
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        tensor = ggml.ggml_tensor
        self._lib.kvalet_set_tensor_layout(
            tensor.data.offset, tensor.ne.offset, tensor.nb.offset, tensor.src.offset
        )
        self.path = path
        self.isa: str = self._lib.kvalet_isa().decode()
        self.write = ggml.ggml_custom_op_t(("kvalet_write", self._lib))
        self.attend = ggml.ggml_custom_op_t(("kvalet_attend", self._lib))
        self.fold = ggml.ggml_custom_op_t(("kvalet_fold", self._lib))
        self.quantise = ggml.ggml_custom_op_t(("kvalet_quantise", self._lib))
        self.norm = ggml.ggml_custom_op_t(("kvalet_norm", self._lib))
        self.swiglu = ggml.ggml_custom_op_t(("kvalet_swiglu", self._lib))
        self.linear = ggml.ggml_custom_op_t(("kvalet_linear_node", self._lib))

    def supports(self, isa: str) -> bool:
        """Whether this processor runs the library of that name."""
        return bool(self._lib.kvalet_cpu_supports(isa.encode()))

    def write_rows(self, a: Attention, k: F32, v: F32, ith: int = 0, nth: int = 1) -> None:
        """k, v: [num_rows, num_kv_heads, head_dim]"""
        size = k.shape[1] * k.shape[2]
        self._lib.kvalet_write_rows(a, k.ctypes.data, size, v.ctypes.data, size, ith, nth)

    def attend_rows(self, a: Attention, q: F32, out: F32, ith: int = 0, nth: int = 1) -> None:
        """q, out: [width, num_heads, head_dim]; the layer's counter must be 0 before."""
        self._lib.kvalet_attend_rows(a, q.ctypes.data, out.ctypes.data, len(out), ith, nth)

    def fold_rows(self, a: Attention, out: F32, ith: int = 0, nth: int = 1) -> None:
        """To be called when all threads have come back from attend_rows."""
        self._lib.kvalet_fold_rows(a, out.ctypes.data, ith, nth)

    def copy_pages(self, dst: Sequence[int], src: Sequence[int], num_bytes: int) -> None:
        """Copy `num_bytes` from each address of `src` to the one at the same place in `dst`."""
        pointers = c_void_p * len(dst)
        self._lib.kvalet_copy_pages(pointers(*dst), pointers(*src), num_bytes, len(dst))

    def fill_nan(self, address: int, num_bytes: int) -> None:
        self._lib.kvalet_fill_nan(address, num_bytes)

    def rotate_keys(
        self, pool: Pool, pages: I32, layers: I32, cosines: F32, sines: F32, *, is_split: bool
    ) -> None:
        """cosines, sines: [pairs], of the angle that each pair of dimensions is turned by."""
        self._lib.kvalet_rotate_keys(
            pool,
            pages.ctypes.data,
            pages.size,
            layers.ctypes.data,
            layers.size,
            cosines.ctypes.data,
            sines.ctypes.data,
            cosines.size,
            is_split,
        )

    def packed_bytes(self, kind: int, num_in: int, num_out: int) -> int:
        """Bytes of the packed weights [num_out, num_in] of ggml type `kind`; 0: not packed here."""
        return int(self._lib.kvalet_packed_bytes(kind, num_in, num_out))

    def pack(self, kind: int, dst: int, src: int, num_in: int, num_out: int) -> None:
        """From a file's rows at `src` to `packed_bytes` at `dst`."""
        self._lib.kvalet_pack(kind, dst, src, num_in, num_out)

    def column_bytes(self, num_in: int) -> int:
        return int(self._lib.kvalet_column_bytes(num_in))

    def quantise_rows(self, x: F32, columns: U8, ith: int = 0, nth: int = 1) -> None:
        """x: [width, num_in], columns: [width, column_bytes]"""
        width, num_in = x.shape
        self._lib.kvalet_quantise_rows(x.ctypes.data, columns.ctypes.data, num_in, width, ith, nth)

    def norm_rows(
        self, x: F32, weight: F32, eps: float, columns: U8, ith: int = 0, nth: int = 1
    ) -> None:
        """Quantises x / rms(x) * weight."""
        width, num_in = x.shape
        addresses = (x.ctypes.data, weight.ctypes.data, eps, columns.ctypes.data)
        self._lib.kvalet_norm_rows(*addresses, num_in, width, ith, nth)

    def swiglu_rows(self, gate_up: F32, columns: U8, ith: int = 0, nth: int = 1) -> None:
        """Quantises silu(gate) * up; gate_up: [width, 2, num_in]"""
        width, _, num_in = gate_up.shape
        addresses = (gate_up.ctypes.data, columns.ctypes.data)
        self._lib.kvalet_swiglu_rows(*addresses, num_in, width, ith, nth)

    def linear_rows(
        self,
        layers: Sequence[Linear],
        columns: U8 | F32,
        out: F32,
        added: F32 | None = None,
        ith: int = 0,
        nth: int = 1,
    ) -> None:
        """out: [width, num_out of all layers]; `added`, of the same shape, is added to it."""
        array = (Linear * len(layers))(*layers)
        addresses = (
            columns.ctypes.data,
            None if added is None else added.ctypes.data,
            out.ctypes.data,
        )
        self._lib.kvalet_linear_rows(array, len(layers), *addresses, len(out), ith, nth)

    def penalize(
        self, logits: F32, ids: I32, counts: I32, repeat: float, frequency: float, presence: float
    ) -> None:
        """In place. ids: distinct token ids; counts: how often each occurred."""
        self._lib.kvalet_penalize(
            logits.ctypes.data,
            logits.size,
            ids.ctypes.data,
            counts.ctypes.data,
            ids.size,
            repeat,
            frequency,
            presence,
        )

    def top_k(self, logits: F32, k: int) -> tuple[I32, F32]:
        """Ids and logits of the k largest, descending, ties by lower id; k <= 0: of all."""
        size = k if 0 < k < logits.size else logits.size
        ids, values = np.empty(size, np.int32), np.empty(size, np.float32)
        n = self._lib.kvalet_top_k(
            logits.ctypes.data, logits.size, size, ids.ctypes.data, values.ctypes.data
        )
        if n < 0:
            raise EngineError(f"no memory to sort {logits.size} logits")
        return ids, values

    def logsumexp(self, logits: F32) -> float:
        return float(self._lib.kvalet_logsumexp(logits.ctypes.data, logits.size))

    def argmax(self, logits: F32) -> int:
        """The lowest id among the largest."""
        return int(self._lib.kvalet_argmax(logits.ctypes.data, logits.size))


def available() -> list[str]:
    """Instruction sets that are both built and supported by this processor, best first."""
    plain = NativeLibrary(_path("plain"))
    return [isa for isa in ISAS if _path(isa).exists() and plain.supports(isa)]


def load(isa: str | None = None) -> NativeLibrary:
    """The library for `isa`, else for the variable KVALET_ISA, else the best this processor runs.

    Raises EngineError if it was not built or the processor lacks it.
    """
    isas = available()
    isa = isa or os.environ.get("KVALET_ISA") or isas[0]
    if isa not in isas:
        raise EngineError(f"instruction set {isa!r} (KVALET_ISA): this machine has {isas}")
    return NativeLibrary(_path(isa))


def _path(isa: str) -> Path:
    return _FOLDER / f"libkvalet_{isa}.so"
