"""Sampling functions against numpy; NaN is less than anything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvalet.engine import native
from kvalet.engine.native import NativeLibrary

pytestmark = pytest.mark.native

F32 = NDArray[np.float32]
LIBRARY = native.load()

few_values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, np.inf, -np.inf, np.nan])
rows_of_logits = st.lists(few_values | st.floats(width=32), min_size=1, max_size=90).map(
    lambda values: np.array(values, np.float32)
)


def order(logits: F32) -> NDArray[np.intp]:
    """Ids by descending logit, ties by id, NaN last."""
    rank = np.where(np.isnan(logits), -np.inf, logits)
    return np.lexsort((np.arange(logits.size), np.isnan(logits), -rank))


def random_logits(num_vocab: int = 49_152) -> F32:
    return (3 * np.random.default_rng(5).standard_normal(num_vocab)).astype(np.float32)


@given(rows_of_logits, st.integers(-1, 100))
def test_top_k(logits: F32, k: int) -> None:
    ids, values = LIBRARY.top_k(logits, k)
    expected = order(logits)[: k if k > 0 else None]
    assert ids.tolist() == expected.tolist()
    assert np.array_equal(values, np.where(np.isnan(logits), -np.inf, logits)[expected])


@pytest.mark.parametrize("k", [1, 40, 1024, 1025, 10_000, 0])
def test_top_k_of_a_vocabulary(library: NativeLibrary, k: int) -> None:
    logits = random_logits()
    logits[::7] = np.round(logits[::7])  # ties
    ids, values = library.top_k(logits, k)
    expected = order(logits)[: k or None]
    assert np.array_equal(ids, expected)
    assert np.array_equal(values, logits[expected])


@given(rows_of_logits)
def test_argmax(logits: F32) -> None:
    assert LIBRARY.argmax(logits) == order(logits)[0]


@given(rows_of_logits)
def test_logsumexp(logits: F32) -> None:
    seen = logits[~np.isnan(logits)].astype("f8")
    with np.errstate(all="ignore"):
        top = seen.max(initial=-np.inf)
        expected = top if np.isinf(top) else top + np.log(np.exp(seen - top).sum())
    assert LIBRARY.logsumexp(logits) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_same_bits_as_plain_c(library: NativeLibrary, plain: NativeLibrary) -> None:
    logits = random_logits(1003)
    assert library.logsumexp(logits) == plain.logsumexp(logits)
    assert library.argmax(logits) == plain.argmax(logits)


def test_penalties(library: NativeLibrary) -> None:
    logits = np.array([2.0, -2.0, 0.0, 5.0], np.float32)
    ids, counts = np.array([0, 1, 2], np.int32), np.array([1, 3, 2], np.int32)
    library.penalize(logits, ids, counts, repeat=2.0, frequency=0.5, presence=0.25)
    assert logits.tolist() == [1.0 - 0.75, -4.0 - 1.75, 0.0 - 1.25, 5.0]
