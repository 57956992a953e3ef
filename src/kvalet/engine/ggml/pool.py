"""The page pool's memory.

Bytes only: who holds a page and what it is called is core's business. Ids are checked here before
an address is made of them. With `poison`, whatever is not in use holds f16 NaN, so that a kernel
that reads it cannot go unnoticed.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from kvalet.core.plan import PAGE_CELLS, PageCopy, PageId
from kvalet.engine import native
from kvalet.engine.ggml.backend import Backend
from kvalet.engine.ggml.planes import Plane
from kvalet.errors import EngineError


class PagePool:
    """`num_pages` pages in the device's memory, each of them its planes one after the other, in the
    layout of native/kvalet.h. `layouts` tells the kernels where each plane lies."""

    def __init__(
        self,
        backend: Backend,
        library: native.NativeLibrary,
        planes: Sequence[Plane],
        num_pages: int,
        poison: bool,
    ) -> None:
        self.num_pages = num_pages
        self.page_bytes = sum(plane.page_bytes for plane in planes)
        self._planes = planes
        self._library = library
        self._poison = poison
        self._buffer = backend.allocate(num_pages * self.page_bytes)
        self.layouts = tuple(self._layouts())
        if poison:
            library.fill_nan(self._buffer.base, num_pages * self.page_bytes)

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
        values = np.frombuffer(ctypes.string_at(self.address(page), self.page_bytes), np.uint16)
        ends = accumulate(plane.page_bytes // values.itemsize for plane in self._planes)
        parts = np.split(values, list(ends)[:-1])
        return b"".join(map(_cells, parts, self._planes, [count] * len(parts)))

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

    def _layouts(self) -> Iterator[native.Pool]:
        base = self._buffer.base
        for plane in self._planes:
            yield native.Pool(
                base,
                self.page_bytes,
                self.num_pages,
                plane.num_layers,
                plane.num_kv_heads,
                plane.head_dim,
            )
            base += plane.page_bytes


def _cells(values: np.ndarray, plane: Plane, count: int) -> bytes:
    """Of one plane of a page."""
    values = values.reshape(plane.num_layers, 2, plane.num_kv_heads, -1)
    keys = values[:, 0].reshape(-1, PAGE_CELLS)[:, :count]
    cells = values[:, 1].reshape(-1, PAGE_CELLS, plane.head_dim)[:, :count]
    return keys.tobytes() + cells.tobytes()
