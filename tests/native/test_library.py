"""Loading, page moves, and the kernels as nodes of a ggml graph."""

import ctypes
import re
from pathlib import Path

import ggml
import numpy as np
import pytest

from kvalet.engine import native
from kvalet.engine.native import NativeLibrary
from kvalet.errors import EngineError
from tests.native.chats import Chats, Shape, Step, bits

pytestmark = pytest.mark.native


def test_loads_the_best_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVALET_ISA", raising=False)
    assert native.load().isa == native.available()[0]


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVALET_ISA", "plain")
    assert native.load().isa == "plain"


def test_an_unknown_instruction_set_is_named() -> None:
    with pytest.raises(EngineError, match="'mmx'"):
        native.load("mmx")


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structures would be read at the wrong places."""
    monkeypatch.setattr(native, "ABI", native.ABI + 1)
    with pytest.raises(EngineError, match=r"libkvalet_plain\.so was built from other sources"):
        native.load()


def test_the_header_and_its_mirror_are_of_one_kind() -> None:
    header = Path(native.__file__).parent.parent / "native" / "kvalet.h"
    defined = dict(re.findall(r"#define KVALET_(\w+) +(\d+)", header.read_text()))
    assert {name: int(value) for name, value in defined.items()} == {
        "ABI": native.ABI,
        "PAGE_CELLS": native.PAGE_CELLS,
        "CHUNK_CELLS": native.CHUNK_CELLS,
        "MAX_HEAD_DIM": native.MAX_HEAD_DIM,
    }


@pytest.mark.parametrize("head_dim", [0, 24, 528, -16])
def test_refuses_heads_the_kernels_cannot_take(head_dim: int) -> None:
    with pytest.raises(EngineError, match="head_dim"):
        native.Pool(0, 0, 1, 1, 1, head_dim)


def test_copies_pages(library: NativeLibrary) -> None:
    pages = np.arange(5 * 64, dtype=np.uint8).reshape(5, 64)
    host = np.zeros((3, 64), np.uint8)
    library.copy_pages(
        [row.ctypes.data for row in host], [pages[i].ctypes.data for i in (4, 0, 2)], 64
    )
    assert np.array_equal(host, pages[[4, 0, 2]])


def test_fills_with_nan(library: NativeLibrary) -> None:
    cells = np.zeros(100, np.float16)
    library.fill_nan(cells[10:].ctypes.data, 80 * 2)
    assert np.isnan(cells[10:90]).all()
    assert not cells[:10].any()
    assert not cells[90:].any()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_nodes_of_a_graph(library: NativeLibrary, num_threads: int) -> None:
    chats = Chats(Shape(), [300, 20])
    rows, width = chats.all_rows(2), 6
    step = Step(chats, rows, partials_floats=100_000)
    expected = chats.attend(library, rows)
    for row in rows:
        for cells in chats.cells(*row):
            cells[:] = np.nan

    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=1 << 20))
    userdata = ctypes.addressof(step.attention)

    def rows_of(values: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> object:
        stacked = np.stack([values[seq][position] for seq, position in rows])
        heads, dim = stacked[0].shape
        tensor = ggml.ggml_new_tensor_3d(context, ggml.GGML_TYPE_F32, dim, heads, width)
        ctypes.memmove(ggml.ggml_get_data(tensor), stacked.ctypes.data, stacked.nbytes)
        return tensor

    def custom(function: object, columns: int, num_rows: int, *sources: object) -> object:
        arguments = (ctypes.POINTER(ggml.ggml_tensor) * len(sources))(*sources)
        kind, shape = ggml.GGML_TYPE_F32, (columns, num_rows, 1, 1)
        return ggml.ggml_custom_4d(
            context, kind, *shape, arguments, len(sources), function, -1, userdata
        )

    written = custom(library.write, 1, 1, rows_of(chats.k), rows_of(chats.v))
    attended = custom(library.attend, 6 * 64, width, rows_of(chats.q), written)
    folded = ggml.ggml_custom_inplace(context, attended, None, 0, library.fold, -1, userdata)
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, folded)
    step.counters[:] = 99  # left by an earlier step
    ggml.ggml_graph_compute_with_ctx(context, graph, num_threads)
    out = np.zeros((width, 6, 64), np.float32)
    ctypes.memmove(out.ctypes.data, ggml.ggml_get_data(folded), out.nbytes)
    ggml.ggml_free(context)
    assert np.array_equal(bits(out[: len(rows)]), bits(expected))
    assert not out[len(rows) :].any()
