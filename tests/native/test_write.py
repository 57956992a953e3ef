"""New cells: the right place, rounded to f16 as numpy does, nothing else touched."""

import numpy as np
import pytest

from kvalet.engine.native import NativeLibrary
from tests.native.chats import Chats, Row, Shape, Step, on_threads

pytestmark = pytest.mark.native


def write(library: NativeLibrary, chats: Chats, rows: list[Row], num_threads: int = 1) -> None:
    step = Step(chats, rows)
    k = np.stack([chats.k[seq][position] for seq, position in rows])
    v = np.stack([chats.v[seq][position] for seq, position in rows])

    def work(ith: int) -> None:
        library.write_rows(step.attention, k, v, ith, num_threads)

    on_threads(num_threads, work)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("shape", [Shape(), Shape(80, 4, 4), Shape(16, 1, 1)], ids=str)
def test_writes_the_rows_cells_and_no_others(
    library: NativeLibrary, shape: Shape, num_threads: int
) -> None:
    chats = Chats(shape, [1, 70, 300])
    expected = chats.pages.copy()
    rows = chats.all_rows(40)
    for row in rows:
        for cells in chats.cells(*row):
            cells[:] = np.nan
    write(library, chats, rows, num_threads)
    assert np.array_equal(chats.pages.view(np.uint16), expected.view(np.uint16))


def test_zeroes_the_layers_counter(library: NativeLibrary) -> None:
    chats = Chats(Shape(), [9])
    step = Step(chats, [(0, 8)])
    step.counters[:] = 7
    library.write_rows(step.attention, chats.k[0][8:], chats.v[0][8:])
    assert step.counters.tolist() == [7, 0]


def every_rounding() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Each f16, the f32 half-way to the next one, and both neighbours of that; and the extremes."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    around = [np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))]
    extremes = np.array([65519.99, 65520, 7e4, 3e38, np.inf, 1e-8, 1e-45], np.float32)
    positive = np.concatenate([halves, middles, *around, extremes])
    return np.concatenate([positive, -positive])


def test_rounds_as_numpy_does(library: NativeLibrary) -> None:
    values = every_rounding()
    shape = Shape(head_dim=512, num_heads=1, num_kv_heads=1)
    num_rows = -(-values.size // 512)
    chats = Chats(shape, [num_rows])
    given = np.resize(values, (num_rows, 1, 512))
    chats.k[0], chats.v[0] = given, -given
    rows = chats.all_rows(num_rows)
    write(library, chats, rows)
    with np.errstate(over="ignore"):
        expected = given.astype(np.float16)
    for row, want in zip(rows, expected, strict=True):
        k, v = chats.cells(*row)
        assert np.array_equal(k.copy().view(np.uint16), want.view(np.uint16))
        assert np.array_equal(v.copy().view(np.uint16), (-want).view(np.uint16))


def test_nan_stays_nan(library: NativeLibrary) -> None:
    chats = Chats(Shape(), [1])
    chats.k[0][:] = np.nan
    write(library, chats, [(0, 0)])
    assert np.isnan(chats.cells(0, 0)[0]).all()
