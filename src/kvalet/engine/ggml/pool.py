"""The page pool's memory.

Bytes only: who holds a page and what it is called is core's business. Ids are checked here before
an address is made of them. With `poison`, whatever is not in use holds f16 NaN, so that a kernel
that reads it cannot go unnoticed.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvalet.core.plan import PAGE_CELLS, PageCopy, PageId
from kvalet.engine import native
from kvalet.engine.ggml.backend import Backend
from kvalet.errors import EngineError

CELL_VALUE_BYTES: Final = 2  # f16


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

    def read(self, page: PageId) -> int:
        """Where the bytes of a page are."""
        return self.address(page)

    def write(self, page: PageId, address: int) -> None:
        """Fill a page with the bytes at `address`."""
        ctypes.memmove(self.address(page), address, self.page_bytes)

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
