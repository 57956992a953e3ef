"""Attention as nodes of a graph: the seam, and our paged kernels behind it.

The structures that kernels read are part of every graph by their address, so they stay while the
engine lives; what changes from step to step lies behind them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import ggml
import numpy as np

from kvalet.core.plan import PAGE_CELLS
from kvalet.engine import native
from kvalet.engine.ggml.architectures.description import AttentionMixer
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.batch import Batch
from kvalet.engine.ggml.linear import ALL_THREADS, node
from kvalet.engine.ggml.planes import Place
from kvalet.engine.ggml.pool import PagePool

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class Attention(Protocol):
    """The rows of a step look at the cells of their sequences, whose pages lie anywhere. What a row
    gets is a function of the cells it sees alone (ADR 0003). On a device without our kernels it
    would gather the pages and use ggml's own operations."""

    @property
    def num_layers(self) -> int: ...

    def take_step(self) -> None:
        """The next run computes what the batch holds now."""
        ...

    def build(self, context: Handle, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v: f32 [dim, heads, width], rotated, q contiguous and a token's k and v too.
        -> f32 [heads * dim, width]"""
        ...


class PagedAttention:
    """By the native kernels, where the pool lies in the processor's memory."""

    def __init__(
        self,
        library: native.NativeLibrary,
        mixers: Sequence[AttentionMixer],
        places: Sequence[Place],
        pool: PagePool,
        batch: Batch,
    ) -> None:
        self._library = library
        self._mixers = mixers
        self._batch = batch
        self._pool = pool  # its layouts are pointed at
        self._counters = np.zeros(len(mixers), np.int32)
        self._partials = np.empty(_partials_floats(mixers, pool, batch), np.float32)
        self._rows = native.Batch(
            row_seq=batch.row_seq.ctypes.data,
            row_cell=batch.cells.ctypes.data,
            row_end=batch.ends.ctypes.data,
            tables=batch.tables.ctypes.data,
            table_stride=batch.tables.shape[1],
            counters=self._counters.ctypes.data,
            partials=self._partials.ctypes.data,
            partials_floats=self._partials.size,
        )
        self._structures = [
            native.Attention(
                pool=ctypes.pointer(pool.layouts[place.plane]),
                batch=ctypes.pointer(self._rows),
                layer=place.layer,
                num_heads=mixer.num_heads,
                window=mixer.window,
                scale=mixer.scale,
            )
            for mixer, place in zip(mixers, places, strict=True)
        ]

    @property
    def num_layers(self) -> int:
        return len(self._mixers)

    def take_step(self) -> None:
        self._rows.num_rows = self._batch.num_rows
        self._rows.num_seqs = self._batch.num_seqs

    def build(self, context: Handle, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        userdata = ctypes.addressof(self._structures[layer])
        mixer = self._mixers[layer]
        size, width = mixer.num_heads * mixer.head_dim, q.contents.ne[2]
        kernels, kind = self._library, ggml.GGML_TYPE_F32
        written = node(context, kind, (1, 1), (k, v), kernels.write, userdata)
        attended = node(context, kind, (size, width), (q, written), kernels.attend, userdata)
        return ggml.ggml_custom_inplace(
            context, attended, None, 0, kernels.fold, ALL_THREADS, userdata
        )


def _partials_floats(mixers: Sequence[AttentionMixer], pool: PagePool, batch: Batch) -> int:
    """Room to split one row of every sequence over threads when together they see all cells of the
    pool twice (shared pages count for each). Beyond it rows are left whole, with the same bits."""
    chunks = 2 * pool.num_pages * PAGE_CELLS // native.CHUNK_CELLS + batch.limits.max_seqs
    return chunks * max(mixer.num_heads * (mixer.head_dim + 2) for mixer in mixers)
