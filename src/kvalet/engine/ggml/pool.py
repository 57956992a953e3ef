"""The page pool's memory, and the host's for pages that are copied out of it.

Bytes only: who holds a page and what it is called is core's business. Ids are checked here before
an address is made of them. With `poison`, whatever is not in use holds f16 NaN, so that a kernel
that reads it cannot go unnoticed.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kvalet.core.plan import PAGE_CELLS, Direction, HostId, PageCopy, PageId, Transfer
from kvalet.engine import native
from kvalet.engine.ggml.backend import Backend
from kvalet.errors import EngineError

CELL_VALUE_BYTES: Final = 2  # f16
SLAB_PAGES: Final = 16  # host pages allocated together


@dataclass(frozen=True, slots=True)
class KVShape:
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def page_bytes(self) -> int:
        """K and V of all layers of a page's cells."""
        values = self.num_layers * 2 * self.num_kv_heads * self.head_dim
        return values * PAGE_CELLS * CELL_VALUE_BYTES


class PagePool:
    """`num_pages` pages in the device's memory, in the layout of native/kvalet.h."""

    def __init__(
        self,
        backend: Backend,
        library: native.NativeLibrary,
        shape: KVShape,
        num_pages: int,
        poison: bool,
    ) -> None:
        self.shape = shape
        self.num_pages = num_pages
        self.page_bytes = shape.page_bytes
        self._library = library
        self._poison = poison
        self._buffer = backend.allocate(num_pages * shape.page_bytes)
        self.layout = native.Pool(
            self._buffer.base,
            shape.page_bytes,
            num_pages,
            shape.num_layers,
            shape.num_kv_heads,
            shape.head_dim,
        )
        if poison:
            library.fill_nan(self._buffer.base, num_pages * shape.page_bytes)

    def address(self, page: PageId) -> int:
        if not 0 <= page < self.num_pages:
            raise EngineError(f"page {page} is outside the pool of {self.num_pages}")
        return self._buffer.base + page * self.page_bytes

    def cells(self, page: PageId, count: int) -> bytes:
        """What the first `count` cells of a page hold, of all layers."""
        shape = self.shape
        values = np.frombuffer(ctypes.string_at(self.address(page), self.page_bytes), np.uint16)
        values = values.reshape(shape.num_layers, 2, shape.num_kv_heads, -1)
        keys = values[:, 0].reshape(-1, PAGE_CELLS)[:, :count]
        cells = values[:, 1].reshape(-1, PAGE_CELLS, shape.head_dim)[:, :count]
        return keys.tobytes() + cells.tobytes()

    def forget(self, pages: Iterable[PageId]) -> None:
        """Nobody needs what these pages hold."""
        if self._poison:
            for page in pages:
                self._library.fill_nan(self.address(page), self.page_bytes)

    def copy(self, copies: Iterable[PageCopy]) -> None:
        """Raises EngineError, having copied nothing, for a page outside the pool."""
        sources = [self.address(copy.src) for copy in copies]
        targets = [self.address(copy.dst) for copy in copies]
        if sources:
            self._library.copy_pages(targets, sources, self.page_bytes)

    def close(self) -> None:
        self._buffer.close()


class HostArena:
    """Page-sized buffers by id, grown on demand to the highest id named, reused as core says."""

    def __init__(self, pool: PagePool, library: native.NativeLibrary) -> None:
        self._pool = pool
        self._library = library
        self._slabs: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    def run(self, transfer: Transfer) -> None:
        """Copy all pages of a transfer. Raises EngineError, having copied nothing, for an id that
        cannot be or when there is no memory for another slab."""
        outward = transfer.direction is Direction.OUT
        pages = [self._pool.address(page) for page, _ in transfer.moves]
        if outward:
            self._grow(max((host for _, host in transfer.moves), default=-1))
        hosts = [self._address(host) for _, host in transfer.moves]
        if outward:
            self._library.copy_pages(hosts, pages, self._pool.page_bytes)
        else:
            self._library.copy_pages(pages, hosts, self._pool.page_bytes)

    def close(self) -> None:
        self._slabs.clear()

    def _grow(self, host: int) -> None:
        try:
            while host >= len(self._slabs) * SLAB_PAGES:
                self._slabs.append(np.empty(SLAB_PAGES * self._pool.page_bytes, np.uint8))
        except MemoryError:
            raise EngineError(f"no memory for host page {host}") from None

    def _address(self, host: HostId) -> int:
        if not 0 <= host < len(self._slabs) * SLAB_PAGES:
            raise EngineError(f"host page {host} was never copied to")
        slab = self._slabs[host // SLAB_PAGES]
        return int(slab.ctypes.data) + host % SLAB_PAGES * self._pool.page_bytes
