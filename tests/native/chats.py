"""Sequences laid out in a pool for the kernel tests, and attention to them in f64.

Every cell that no sequence has written is NaN, pages are dealt at random, and the layer beside the
one under test is NaN throughout: a kernel that lets in what it must not gives NaN.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvalet.engine.native import PAGE_CELLS, Attention, Batch, NativeLibrary, Pool

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Row = tuple[int, int]  # sequence, position

NUM_LAYERS = 2
LAYER = 1


@dataclass(frozen=True)
class Shape:
    head_dim: int = 64
    num_heads: int = 6
    num_kv_heads: int = 2
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False


def bits(x: F32) -> NDArray[np.uint32]:
    return x.view(np.uint32)


class Chats:
    """Sequences of the given lengths with random q, k, v; their cells are in the pool."""

    def __init__(self, shape: Shape, lengths: Sequence[int], seed: int = 0, deal: int = 0) -> None:
        """`seed` decides the values, `deal` which pages they lie in."""
        rng = np.random.default_rng(seed)
        self.shape = shape
        self.lengths = list(lengths)
        d, kv_heads = shape.head_dim, shape.num_kv_heads

        def normal(n: int, heads: int) -> F32:
            return rng.standard_normal((n, heads, d)).astype(np.float32)

        self.q = [normal(n, shape.num_heads) for n in lengths]
        self.k = [normal(n, kv_heads) for n in lengths]
        self.v = [normal(n, kv_heads) for n in lengths]
        self.sinks = rng.standard_normal(shape.num_heads).astype(np.float32)
        per_seq = [-(-n // PAGE_CELLS) for n in lengths]
        num_pages = sum(per_seq) + 3
        self.pages = np.full((num_pages, NUM_LAYERS, 2, kv_heads, d * PAGE_CELLS), np.nan, "f2")
        order = np.random.default_rng(deal).permutation(num_pages).astype(np.int32)
        self.tables = np.full((len(lengths), max(per_seq) + 1), order[-1], np.int32)
        start = 0
        for i, n in enumerate(per_seq):
            self.tables[i, :n] = order[start : start + n]
            start += n
        self.pool = Pool(
            self.pages.ctypes.data,
            self.pages.strides[0],
            num_pages,
            NUM_LAYERS,
            kv_heads,
            d,
        )
        for seq in range(len(lengths)):
            self._fill(seq)

    def cells(self, seq: int, position: int) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """Views of K and V of one cell, each [num_kv_heads, head_dim]."""
        page = self.pages[self.tables[seq, position // PAGE_CELLS], LAYER]
        d, heads, cell = self.shape.head_dim, self.shape.num_kv_heads, position % PAGE_CELLS
        k = page[0].reshape(heads, d, PAGE_CELLS)[:, :, cell]
        v = page[1].reshape(heads, PAGE_CELLS, d)[:, cell, :]
        return k, v

    def _fill(self, seq: int) -> None:
        d, heads = self.shape.head_dim, self.shape.num_kv_heads
        for start in range(0, self.lengths[seq], PAGE_CELLS):
            k, v = (x[seq][start : start + PAGE_CELLS] for x in (self.k, self.v))
            page = self.pages[self.tables[seq, start // PAGE_CELLS], LAYER]
            page[0].reshape(heads, d, PAGE_CELLS)[:, :, : len(k)] = k.transpose(1, 2, 0)
            page[1].reshape(heads, PAGE_CELLS, d)[:, : len(v)] = v.transpose(1, 0, 2)

    def all_rows(self, count: int) -> list[Row]:
        """The last `count` rows of every sequence."""
        return [
            (seq, position)
            for seq, n in enumerate(self.lengths)
            for position in range(max(0, n - count), n)
        ]

    def attend(
        self,
        library: NativeLibrary,
        rows: Sequence[Row],
        *,
        num_threads: int = 1,
        partials_floats: int = 0,
        padding: int = 0,
        end: int | None = None,
    ) -> F32:
        """Output [len(rows) + padding, num_heads, head_dim], by attend and fold. `end`: the end
        cell of all rows, where it is not the one after their own."""
        step = Step(self, rows, partials_floats)
        if end is not None:
            step.row_end[:] = end
        q = np.stack([self.q[seq][position] for seq, position in rows])
        q = np.concatenate([q, np.full((padding, *q.shape[1:]), np.nan, np.float32)])
        out = np.full_like(q, np.nan)

        def attend(ith: int) -> None:
            library.attend_rows(step.attention, q, out, ith, num_threads)

        def fold(ith: int) -> None:
            library.fold_rows(step.attention, out, ith, num_threads)

        on_threads(num_threads, attend)
        on_threads(num_threads, fold)
        return out

    def expected(self, row: Row, end: int | None = None) -> F64:
        """[num_heads, head_dim] in f64 from the cells as rounded to f16."""
        seq, position = row
        end = position + 1 if end is None else end
        shape = self.shape
        start = max(0, position + 1 - shape.window) if shape.window else 0
        group = shape.num_heads // shape.num_kv_heads

        def seen(x: F32) -> F64:
            return x[start:end].astype("f2").astype("f8").repeat(group, axis=1)

        k, v = seen(self.k[seq]), seen(self.v[seq])
        q = self.q[seq][position].astype("f8")
        scores = np.einsum("hd,nhd->hn", q, k) / np.sqrt(shape.head_dim)
        if shape.softcap:
            scores = shape.softcap * np.tanh(scores / shape.softcap)
        sinks = self.sinks.astype("f8")[:, None] if shape.has_sinks else np.full((1, 1), -np.inf)
        top = np.maximum(scores.max(axis=1, keepdims=True), sinks)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True) + np.exp(sinks - top)
        result: F64 = np.einsum("hn,nhd->hd", weights / total, v)
        return result


class Step:
    """The structs of one step; keeps the arrays they point at alive."""

    def __init__(self, chats: Chats, rows: Sequence[Row], partials_floats: int = 0) -> None:
        shape = chats.shape
        self._row_seq = np.array([seq for seq, _ in rows], np.int32)
        self._row_cell = np.array([position for _, position in rows], np.int32)
        self.row_end = self._row_cell + 1
        self.counters = np.zeros(NUM_LAYERS, np.int32)
        self._partials = np.full(partials_floats, np.nan, np.float32)
        self._chats = chats
        self.batch = Batch(
            len(rows),
            len(chats.lengths),
            self._row_seq.ctypes.data,
            self._row_cell.ctypes.data,
            self.row_end.ctypes.data,
            chats.tables.ctypes.data,
            chats.tables.shape[1],
            self.counters.ctypes.data,
            self._partials.ctypes.data,
            partials_floats,
        )
        self.attention = Attention(
            ctypes.pointer(chats.pool),
            ctypes.pointer(self.batch),
            chats.sinks.ctypes.data if shape.has_sinks else None,
            LAYER,
            shape.num_heads,
            shape.window,
            shape.head_dim**-0.5,
            shape.softcap,
        )


def on_threads(num_threads: int, work: Callable[[int], None]) -> None:
    """work(0) .. work(num_threads - 1) at the same time."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
