"""A row's bits depend on nothing but its own sequence up to itself (ADR 0003)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.engine import native
from kvalet.engine.native import NativeLibrary
from tests.native.chats import Chats, Row, Shape, bits

pytestmark = pytest.mark.native

LIBRARY = native.load()

shapes = st.builds(
    Shape,
    head_dim=st.sampled_from([16, 64, 80, 128]),
    num_kv_heads=st.sampled_from([1, 2]),
    window=st.sampled_from([0, 0, 5, 31, 100, 256, 300]),
    softcap=st.sampled_from([0.0, 0.0, 8.0]),
    has_sinks=st.booleans(),
    num_heads=st.sampled_from([2, 6, 8, 16]),
)


@st.composite
def runs(draw: st.DrawFn, lengths: list[int]) -> list[Row]:
    """Some adjacent rows of some of the sequences, sequences in any order."""
    rows = []
    for seq in draw(st.permutations(range(len(lengths)))):
        count = draw(st.integers(0, min(lengths[seq], 40)))
        first = draw(st.integers(0, lengths[seq] - count))
        rows += [(seq, position) for position in range(first, first + count)]
    return rows or [(0, 0)]


@settings(max_examples=40)
@given(st.data())
def test_bits_do_not_depend_on_the_rest_of_the_step(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    near_a_chunk = st.integers(250, 262) | st.integers(510, 515)
    lengths = data.draw(st.lists(st.integers(1, 600) | near_a_chunk, min_size=1, max_size=4))
    rows = data.draw(runs(lengths))
    alone = Chats(shape, lengths, deal=1)
    together = Chats(shape, lengths, deal=2)
    out = together.attend(
        LIBRARY,
        rows,
        num_threads=data.draw(st.integers(1, 3)),
        partials_floats=data.draw(st.sampled_from([0, 1000, 30_000, 4_000_000])),
        padding=data.draw(st.integers(0, 2)),
    )
    for i in data.draw(st.sets(st.sampled_from(range(len(rows))), max_size=4)) | {len(rows) - 1}:
        assert np.array_equal(bits(out[i]), bits(alone.attend(LIBRARY, [rows[i]])[0])), rows[i]


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_cells_a_row_does_not_see_may_hold_anything(
    library: NativeLibrary, window: int, poison: float
) -> None:
    chats = Chats(Shape(window=window), [340])
    rows = [(0, position) for position in range(200, 340)]
    clean = chats.attend(library, rows)
    seen = 300  # the row looked at: poison from right behind it, and before its window
    for position in range(seen + 1, 340):
        for cells in chats.cells(0, position):
            cells[:] = poison
    for position in range(seen + 1 - window if window else 0):
        for cells in chats.cells(0, position):
            cells[:] = poison
    out = chats.attend(library, rows, num_threads=2)
    assert np.array_equal(bits(out[seen - 200]), bits(clean[seen - 200]))
    assert not np.array_equal(bits(out[-1]), bits(clean[-1]))


def test_split_and_whole_rows_in_one_step(library: NativeLibrary) -> None:
    """Partials that suffice for the first blocks only."""
    shape = Shape(head_dim=16)
    chats = Chats(shape, [300, 400, 500])
    rows = chats.all_rows(20)
    whole = chats.attend(library, rows)
    for blocks in (1, 2, 4):
        partials = blocks * 8 * shape.num_heads * 2 * (shape.head_dim + 2)
        split = chats.attend(library, rows, partials_floats=partials, num_threads=2)
        assert np.array_equal(bits(split), bits(whole))
