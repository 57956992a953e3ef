"""Context shift on the real engine: rotated keys are those of the new positions.

In a model of one layer, keys and values depend on the token and its position alone, so a shifted
page can be compared with one computed at the place it was shifted to.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from kvalet.core.plan import PAGE_CELLS, PageId, PageShift, StepPlan
from kvalet.engine.ggml.engine import GgmlEngine, load_engine
from kvalet.errors import EngineError
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
    return load_engine(path, num_pages=8, threads=1, poison=True)


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
