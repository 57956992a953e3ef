"""Linear layers against the weights as ggml reads them; a token has the same bits beside any."""

import ctypes
from dataclasses import dataclass

import ggml
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvalet.engine import native
from kvalet.engine.native import Linear, NativeLibrary

pytestmark = pytest.mark.native

F32 = NDArray[np.float32]
FLOATS = {"f32": ggml.GGML_TYPE_F32, "f16": ggml.GGML_TYPE_F16, "bf16": ggml.GGML_TYPE_BF16}
QUANTISED = {
    name: getattr(ggml, f"GGML_TYPE_{name.upper()}")
    for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4")
}
KINDS = {**FLOATS, **QUANTISED}
NUM_IN, NUM_OUT, WIDTH = 512, 41, 13


@dataclass
class Weights:
    """Random ones of a ggml type, packed."""

    kind: int
    values: F32  # [num_out, num_in]
    packed: NDArray[np.uint8]
    bias: F32 | None = None

    @property
    def layer(self) -> Linear:
        num_out, num_in = self.values.shape
        bias = None if self.bias is None else self.bias.ctypes.data
        return Linear(self.packed.ctypes.data, bias, self.kind, num_in, num_out)


def quantised(kind: int, values: F32) -> tuple[NDArray[np.uint8], F32]:
    """A file's bytes, and what they mean."""
    num_out, num_in = values.shape
    rows = np.zeros(ggml.ggml_row_size(kind, num_in) * num_out, np.uint8)
    floats = ctypes.POINTER(ctypes.c_float)
    source = values.ctypes.data_as(floats)
    ggml.ggml_quantize_chunk(kind, source, rows.ctypes.data, 0, num_out, num_in, None)
    meant = values.copy()
    if kind != ggml.GGML_TYPE_F32:
        to_float = ggml.ggml_get_type_traits(kind).contents.to_float
        to_float(rows.ctypes.data, meant.ctypes.data_as(floats), meant.size)
    return rows, meant


def weights_of(
    library: NativeLibrary, name: str, num_out: int = NUM_OUT, seed: int = 0, num_in: int = NUM_IN
) -> Weights:
    kind = KINDS[name]
    random = np.random.default_rng(seed).standard_normal((num_out, num_in)) * 0.05
    rows, values = quantised(kind, random.astype(np.float32))
    packed = np.zeros(library.packed_bytes(kind, num_in, num_out), np.uint8)
    library.pack(kind, packed.ctypes.data, rows.ctypes.data, num_in, num_out)
    return Weights(kind, values, packed)


def inputs(width: int = WIDTH, num_in: int = NUM_IN) -> F32:
    return np.random.default_rng(1).standard_normal((width, num_in)).astype(np.float32)


def columns_of(library: NativeLibrary, x: F32, threads: int = 1) -> NDArray[np.uint8]:
    columns = np.zeros((len(x), library.column_bytes(x.shape[1])), np.uint8)
    for ith in range(threads):
        library.quantise_rows(x, columns, ith, threads)
    return columns


def product(
    library: NativeLibrary, weights: list[Weights], x: F32, added: F32 | None = None, nth: int = 1
) -> F32:
    is_float = weights[0].kind in FLOATS.values()
    columns = x if is_float else columns_of(library, x, nth)
    out = np.full((len(x), sum(len(w.values) for w in weights)), np.nan, np.float32)
    for ith in range(nth):
        library.linear_rows([w.layer for w in weights], columns, out, added, ith, nth)
    return out


@pytest.mark.parametrize("name", KINDS)
def test_a_product_is_that_of_the_files_weights(library: NativeLibrary, name: str) -> None:
    """Inputs have eight bits, of a block's largest: that is all that is lost."""
    weights, x = weights_of(library, name), inputs()
    expected = x.astype(np.float64) @ weights.values.T
    error = np.abs(product(library, [weights], x) - expected).max() / np.abs(expected).max()
    assert error < (2e-6 if name in FLOATS else 0.008)


@pytest.mark.parametrize("name", QUANTISED)
def test_inputs_that_eight_bits_hold_lose_nothing(library: NativeLibrary, name: str) -> None:
    whole = np.random.default_rng(2).integers(-127, 128, (3, NUM_IN)).astype(np.float32)
    whole[:, ::32] = 127
    weights = weights_of(library, name)
    expected = whole.astype(np.float64) @ weights.values.T
    assert product(library, [weights], whole) == pytest.approx(expected, rel=1e-4, abs=2e-2)


@pytest.mark.parametrize("name", KINDS)
def test_neither_width_nor_threads_nor_instruction_set_change_a_bit(
    library: NativeLibrary, plain: NativeLibrary, name: str
) -> None:
    weights, x = weights_of(library, name), inputs()
    expected = product(plain, [weights_of(plain, name)], x)
    for width in range(1, WIDTH + 1):
        assert np.array_equal(product(library, [weights], x[:width]), expected[:width])
    for nth in (2, 3, 7):
        assert np.array_equal(product(library, [weights], x, nth=nth), expected)


def test_more_columns_than_are_taken_at_once(library: NativeLibrary) -> None:
    weights, x = weights_of(library, "q4_1"), inputs(150)
    alone = [product(library, [weights], x[at : at + 1])[0] for at in (0, 63, 64, 149)]
    assert np.array_equal(product(library, [weights], x)[[0, 63, 64, 149]], np.stack(alone))


def test_layers_with_one_input_are_computed_together(library: NativeLibrary) -> None:
    layers = [weights_of(library, "q4_0", 48), weights_of(library, "q6_k", 17, seed=3)]
    x = inputs()
    alone = [product(library, [layer], x) for layer in layers]
    for nth in (1, 2, 5):
        assert np.array_equal(product(library, layers, x, nth=nth), np.hstack(alone))


def test_bias_and_what_is_added(library: NativeLibrary) -> None:
    weights, x = weights_of(library, "q5_1"), inputs()
    plain = product(library, [weights], x)
    added = np.random.default_rng(4).standard_normal(plain.shape).astype(np.float32)
    weights.bias = np.arange(NUM_OUT, dtype=np.float32)
    assert np.array_equal(product(library, [weights], x), plain + weights.bias)
    assert np.array_equal(product(library, [weights], x, added), plain + weights.bias + added)


@pytest.mark.parametrize(
    ("name", "num_in"), [("q4_0", 48), ("q4_k", 128), ("q6_k", 32), ("q4_0", 0), ("f16", -1)]
)
def test_shapes_that_cannot_be_packed(library: NativeLibrary, name: str, num_in: int) -> None:
    assert library.packed_bytes(KINDS[name], num_in, 16) == 0


def test_types_that_are_not_packed(library: NativeLibrary) -> None:
    assert library.packed_bytes(ggml.GGML_TYPE_Q2_K, 256, 16) == 0


def test_a_norm_and_a_gate_are_quantised_like_their_values(library: NativeLibrary) -> None:
    x, weight = inputs(), inputs(1)[0]
    columns = np.zeros((WIDTH, library.column_bytes(NUM_IN)), np.uint8)
    library.norm_rows(x, weight, 1e-5, columns)
    double = x.astype(np.float64)
    normed = double / np.sqrt((double**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    assert dequantised(columns) == pytest.approx(normed, abs=np.abs(normed).max() / 200)
    library.swiglu_rows(x[:12].reshape(6, 2, NUM_IN), columns)
    gate, up = double[:12:2], double[1:12:2]
    gated = gate / (1 + np.exp(-gate)) * up
    assert dequantised(columns[:6]) == pytest.approx(gated, abs=np.abs(gated).max() / 200)


def dequantised(columns: NDArray[np.uint8]) -> F32:
    whole = columns[:, :NUM_IN].view(np.int8).astype(np.float32)
    scales = columns[:, NUM_IN : NUM_IN + NUM_IN // 2].copy().view(np.float32)[:, ::4]
    return whole * np.repeat(scales, 32, axis=1)


def test_norms_and_gates_have_the_same_bits_everywhere(
    library: NativeLibrary, plain: NativeLibrary
) -> None:
    x, weight = inputs(8), inputs(1)[0]
    for nth in (1, 3):
        columns = np.zeros((2, 2, 8, library.column_bytes(NUM_IN)), np.uint8)
        for normed, gated, used in zip(*columns.swapaxes(0, 1), (library, plain), strict=True):
            for ith in range(nth):
                used.norm_rows(x, weight, 1e-5, normed, ith, nth)
                used.swiglu_rows(x.reshape(4, 2, NUM_IN), gated[:4], ith, nth)
        assert columns[0].tobytes() == columns[1].tobytes()


odd_floats = st.floats(width=32, allow_nan=True) | st.sampled_from([0.0, 1e-38, np.inf, -np.inf])


@given(values=st.lists(odd_floats, min_size=64, max_size=64))
def test_any_floats_are_quantised_alike_everywhere(values: list[float]) -> None:
    x = np.array(values, np.float32)[None]
    columns = [columns_of(native.load(isa), x) for isa in native.available()]
    for other in columns[1:]:
        assert columns[0].tobytes() == other.tobytes()
