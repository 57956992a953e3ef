"""Pages with layers of several shapes: each plane has its part, and a page is moved as one."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from kvalet.core.plan import PAGE_CELLS, PageCopy, PageId
from kvalet.engine import native
from kvalet.engine.ggml.architectures.description import AttentionMixer, Pairs, Rope
from kvalet.engine.ggml.backend import Backend
from kvalet.engine.ggml.planes import Place, Plane, lay_out
from kvalet.engine.ggml.pool import PagePool

pytestmark = pytest.mark.native

ROPE = Rope(Pairs.NEIGHBOURS, 16, 10000.0, 1.0, 64, 0.0, 1.0, 32.0, 1.0, None)
SMALL = AttentionMixer(num_heads=4, num_kv_heads=2, head_dim=16, scale=1, window=0, rope=ROPE)
LARGE = replace(SMALL, num_kv_heads=1, head_dim=48)


def test_layers_of_one_shape_share_a_plane() -> None:
    windowed = replace(SMALL, num_heads=8, window=9)
    planes, places = lay_out([SMALL, LARGE, windowed, LARGE, SMALL])
    assert planes == (Plane(3, 2, 16), Plane(2, 1, 48))
    assert places == (Place(0, 0), Place(1, 0), Place(0, 1), Place(1, 1), Place(0, 2))


@pytest.fixture
def pool() -> Iterator[PagePool]:
    planes, _ = lay_out([SMALL, LARGE, SMALL])
    with Backend(threads=1) as backend:
        made = PagePool(backend, native.load(), planes, num_pages=3, poison=True)
        yield made
        made.close()


def test_a_page_is_its_planes_one_after_the_other(pool: PagePool) -> None:
    first, second = pool.layouts
    assert pool.page_bytes == Plane(2, 2, 16).page_bytes + Plane(1, 1, 48).page_bytes
    assert first.page_bytes == second.page_bytes == pool.page_bytes
    assert first.base == pool.address(PageId(0))
    assert second.base == first.base + Plane(2, 2, 16).page_bytes
    assert (first.num_layers, second.num_layers) == (2, 1)


def test_cells_are_those_of_all_planes(pool: PagePool) -> None:
    values = np.arange(pool.page_bytes // 2, dtype=np.uint16)
    pool.write(PageId(1), values.ctypes.data)
    pool.copy([PageCopy(PageId(1), PageId(2))])
    every = np.frombuffer(pool.cells(PageId(2), PAGE_CELLS), np.uint16)
    assert sorted(every) == list(values)
    three = np.frombuffer(pool.cells(PageId(2), 3), np.uint16)
    assert len(three) == 3 * len(values) // PAGE_CELLS
    keys = values[: 16 * PAGE_CELLS].reshape(16, PAGE_CELLS)
    assert list(three[: 16 * 3]) == list(keys[:, :3].ravel())
    assert np.isnan(np.frombuffer(pool.cells(PageId(0), PAGE_CELLS), np.float16)).all()
