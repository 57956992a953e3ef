"""Attention is right: against f64, on every instruction set the same bits."""

import numpy as np
import pytest

from kvalet.engine.native import NativeLibrary
from tests.native.chats import Chats, Shape, bits

pytestmark = pytest.mark.native

SHAPES = [
    Shape(head_dim=16, num_heads=2, num_kv_heads=2),
    Shape(head_dim=64, num_heads=9, num_kv_heads=3),
    Shape(head_dim=64, num_heads=7, num_kv_heads=1, window=40),
    Shape(head_dim=80, num_heads=4, num_kv_heads=4, softcap=20.0),
    Shape(head_dim=96, num_heads=8, num_kv_heads=2, window=300),
    Shape(head_dim=128, num_heads=8, num_kv_heads=1, has_sinks=True),
    Shape(head_dim=256, num_heads=4, num_kv_heads=1, window=257, softcap=5.0, has_sinks=True),
    Shape(head_dim=512, num_heads=2, num_kv_heads=2),
    Shape(head_dim=16, num_heads=30, num_kv_heads=1),  # more heads in a group than a block holds
]
LENGTHS = (1, 33, 257, 530)  # one cell; a page and one; a chunk and one; three chunks


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_f64(library: NativeLibrary, shape: Shape) -> None:
    chats = Chats(shape, LENGTHS)
    rows = chats.all_rows(5)
    out = chats.attend(library, rows)
    expected = np.stack([chats.expected(row) for row in rows])
    assert np.abs(out - expected).max() < 2e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("partials_floats", [0, 1 << 20])
def test_a_row_sees_up_to_its_end_cell_and_a_window_ends_with_its_own(
    library: NativeLibrary, shape: Shape, partials_floats: int
) -> None:
    """As the cells of an image would, that see one another whatever their order."""
    chats = Chats(shape, [530])
    rows = [(0, cell) for cell in range(505, 525)]
    out = chats.attend(library, rows, partials_floats=partials_floats, end=525)
    expected = np.stack([chats.expected(row, end=525) for row in rows])
    assert np.abs(out - expected).max() < 2e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_bits_as_plain_c(library: NativeLibrary, plain: NativeLibrary, shape: Shape) -> None:
    chats = Chats(shape, LENGTHS)
    rows = chats.all_rows(3)
    assert np.array_equal(bits(chats.attend(library, rows)), bits(chats.attend(plain, rows)))


def test_one_cell_far_above_the_rest_takes_all(library: NativeLibrary) -> None:
    chats = Chats(Shape(), [600])
    k, _ = chats.cells(0, 300)
    k[:] = 0
    chats.q[0][599, :, 0] = 100
    k[:, 0] = 1000
    out = chats.attend(library, [(0, 599)])[0]
    v = chats.cells(0, 300)[1].astype(np.float32).repeat(3, axis=0)
    assert np.array_equal(out, v)


def test_a_sink_far_above_takes_all(library: NativeLibrary) -> None:
    chats = Chats(Shape(has_sinks=True), [300])
    chats.sinks[:] = 1e4
    assert not chats.attend(library, [(0, 299)]).any()


def test_nan_in_a_visible_cell_is_not_hidden(library: NativeLibrary) -> None:
    chats = Chats(Shape(), [300])
    k, _ = chats.cells(0, 7)
    k[:] = np.nan
    assert np.isnan(chats.attend(library, [(0, 299)])).all()
    assert not np.isnan(chats.attend(library, [(0, 6)])).any()


def test_padding_rows_are_zero(library: NativeLibrary) -> None:
    chats = Chats(Shape(), [40])
    out = chats.attend(library, [(0, 39)], padding=3)
    assert not out[1:].any()
    assert out[0].any()
