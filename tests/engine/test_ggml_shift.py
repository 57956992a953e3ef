"""Context shift on the real engine: rotated keys are those of the new positions.

In a model of one layer, keys and values depend on the token and its position alone, so a shifted
page can be compared with one computed at the place it was shifted to.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from kvalet.core.plan import PAGE_CELLS, PageId, PageShift, StepPlan
from kvalet.engine import native
from kvalet.engine.ggml.architectures.description import AttentionMixer, Pairs, Rope
from kvalet.engine.ggml.backend import Backend, Handle, Tensor
from kvalet.engine.ggml.engine import GgmlEngine, load_engine
from kvalet.engine.ggml.planes import lay_out
from kvalet.engine.ggml.pool import PagePool
from kvalet.engine.ggml.rope import rotate
from kvalet.engine.ggml.shift import KeyShift
from kvalet.errors import EngineError
from kvalet.model.gguf import GGUFFile
from tests.engine.steps import chat, generate
from tests.engine.tiny_models import MetaValue, write_tiny_llama

pytestmark = pytest.mark.native

PROMPT = [(i * 37 + 5) % 200 + 20 for i in range(4 * PAGE_CELLS)]
YARN: dict[str, MetaValue] = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}


def one_layer(tmp_path: Path, metadata: Mapping[str, MetaValue], *, factors: bool) -> GgmlEngine:
    path = write_tiny_llama(
        tmp_path / "tiny.gguf", n_layer=1, metadata=metadata, rope_factors=factors
    )
    return load_engine(GGUFFile.open(path), num_pages=8, threads=1, poison=True)


def values(engine: GgmlEngine, page: int) -> np.ndarray:
    cells = engine._runner.pool.cells(PageId(page), PAGE_CELLS)
    return np.frombuffer(cells, np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("metadata", "factors"),
    [({}, False), ({"llama.rope.scaling.factor": 2.0}, False), (YARN, False), ({}, True)],
    ids=["plain", "linear", "yarn", "factors"],
)
def test_shifted_keys_are_those_of_the_new_position(
    tmp_path: Path, metadata: Mapping[str, MetaValue], factors: bool
) -> None:
    engine = one_layer(tmp_path, metadata, factors=factors)
    generate(engine, [chat(1, PROMPT, range(5))], count=1)
    generate(engine, [chat(2, PROMPT[3 * PAGE_CELLS :], [6, 7])], count=1)
    before = values(engine, 3)
    engine.execute(StepPlan(2, page_shifts=(PageShift((PageId(3),), -3 * PAGE_CELLS),)))
    shifted, expected = values(engine, 3), values(engine, 6)
    assert np.abs(before - expected).max() > 0.1
    np.testing.assert_allclose(shifted, expected, atol=2e-3 * np.abs(expected).max())
    half = len(shifted) // 2
    assert (shifted[half:] == before[half:]).all()
    engine.close()


def test_a_shift_of_a_page_outside_the_pool_is_refused(tmp_path: Path) -> None:
    engine = one_layer(tmp_path, {}, factors=False)
    with pytest.raises(EngineError, match="page 8"):
        engine.execute(StepPlan(1, page_shifts=(PageShift((PageId(8),), -32),)))
    engine.close()


def test_each_layer_is_turned_by_its_own_rope() -> None:
    """Two bases, two ways to pair dimensions, one page: against the rotation's definition."""
    distance, head_dim = -40, 16
    ropes = [
        Rope(pairs, 12, base, 1.0, 64, 0.0, 1.0, 32.0, 1.0, None)
        for pairs, base in [(Pairs.NEIGHBOURS, 10.0), (Pairs.HALVES, 10.0), (Pairs.HALVES, 900.0)]
    ]
    mixers = [AttentionMixer(1, 1, head_dim, 1.0, 0, rope) for rope in [*ropes, ropes[0]]]
    planes, places = lay_out(mixers)
    library = native.load()
    with Backend(threads=1) as backend:
        pool = PagePool(backend, library, planes, num_pages=2, poison=False)
        before = np.random.default_rng(0).standard_normal((4, 2, head_dim, PAGE_CELLS), np.float32)
        stored = before.astype(np.float16)
        pool.write(PageId(1), stored.ctypes.data)
        shift = KeyShift(backend, library, without_factors, mixers, places)
        shift.run(pool, PageShift((PageId(1),), distance))
        page = np.frombuffer(pool.cells(PageId(1), PAGE_CELLS), np.float16).astype(np.float32)
        pool.close()
    keys = page[: page.size // 2].reshape(4, head_dim, PAGE_CELLS)
    for mixer, key, old in zip(mixers, keys, before[:, 0], strict=True):
        np.testing.assert_allclose(key, turned(mixer.rope, old, distance), atol=6e-3)
    assert (page[page.size // 2 :] == stored[:, 1].ravel()).all()


def without_factors(context: Handle, rope: Rope, x: Tensor, positions: Tensor) -> Tensor:
    return rotate(context, rope, None, x, positions)


def turned(rope: Rope, key: np.ndarray, distance: int) -> np.ndarray:
    pairs = np.arange(rope.num_dims // 2)
    angles = distance * rope.freq_base ** (-2.0 * pairs / rope.num_dims)
    half = rope.num_dims // 2
    is_split = rope.pairs is Pairs.HALVES
    first, second = (pairs, pairs + half) if is_split else (2 * pairs, 2 * pairs + 1)
    result = key.copy()
    cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
    result[first] = key[first] * cosines - key[second] * sines
    result[second] = key[first] * sines + key[second] * cosines
    return result
