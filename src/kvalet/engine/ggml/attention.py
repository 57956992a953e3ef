"""Paged attention as nodes of a graph: our kernels, and the structures they read at each run.

The structures' addresses are part of every graph, so they stay while the engine lives; what
changes from step to step lies behind them.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ggml
import numpy as np

from kvalet.core.plan import PAGE_CELLS
from kvalet.engine import native
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.batch import Batch
from kvalet.engine.ggml.pool import PagePool

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

ALL_THREADS: Final = -1  # ggml's GGML_N_TASKS_MAX


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What one layer's attention is apart from its place in the pool."""

    num_heads: int
    scale: float  # multiplies q.k
    window: int = 0  # cells a row sees, its own included; 0: all
    softcap: float = 0.0  # 0: none
    sinks: Floats | None = None  # [num_heads]


class PagedAttention:
    def __init__(
        self,
        library: native.NativeLibrary,
        layers: Sequence[AttentionLayer],
        pool: PagePool,
        batch: Batch,
    ) -> None:
        self._library = library
        self._layers = layers
        self._pool = pool
        self._batch = batch
        self._counters = np.zeros(len(layers), np.int32)
        self._partials = np.empty(_partials_floats(layers, pool, batch), np.float32)
        self._rows = native.Batch(
            row_seq=batch.row_seq.ctypes.data,
            row_pos=batch.positions.ctypes.data,
            tables=batch.tables.ctypes.data,
            table_stride=batch.tables.shape[1],
            counters=self._counters.ctypes.data,
            partials=self._partials.ctypes.data,
            partials_floats=self._partials.size,
        )
        self._structures = [
            native.Attention(
                ctypes.pointer(pool.layout),
                ctypes.pointer(self._rows),
                None if layer.sinks is None else layer.sinks.ctypes.data,
                index,
                layer.num_heads,
                layer.window,
                layer.scale,
                layer.softcap,
            )
            for index, layer in enumerate(layers)
        ]

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def take_step(self) -> None:
        """The next run computes what the batch holds now."""
        self._rows.num_rows = self._batch.num_rows
        self._rows.num_seqs = len(self._batch.grants)

    def build(self, context: Handle, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v: f32, contiguous, rotated. -> f32 [heads * dim, width]"""
        userdata = ctypes.addressof(self._structures[layer])
        size = self._layers[layer].num_heads * self._pool.shape.head_dim
        width = v.contents.ne[1]
        written = self._node(context, 1, 1, (k, v), self._library.write, userdata)
        attended = self._node(context, size, width, (q, written), self._library.attend, userdata)
        return ggml.ggml_custom_inplace(
            context, attended, None, 0, self._library.fold, ALL_THREADS, userdata
        )

    def _node(
        self,
        context: Handle,
        size: int,
        width: int,
        sources: tuple[Tensor, ...],
        kernel: object,
        userdata: int,
    ) -> Tensor:
        arguments = (ctypes.POINTER(ggml.ggml_tensor) * len(sources))(*sources)
        return ggml.ggml_custom_4d(
            context,
            ggml.GGML_TYPE_F32,
            size,
            width,
            1,
            1,
            arguments,
            len(sources),
            kernel,
            ALL_THREADS,
            userdata,
        )


def _partials_floats(layers: Sequence[AttentionLayer], pool: PagePool, batch: Batch) -> int:
    """Room to split one row of every sequence over threads when together they see all cells of the
    pool twice (shared pages count for each). Beyond it rows are left whole, with the same bits."""
    chunks = 2 * pool.num_pages * PAGE_CELLS // native.CHUNK_CELLS + batch.limits.max_seqs
    num_heads = max(layer.num_heads for layer in layers)
    return chunks * num_heads * (pool.shape.head_dim + 2)
