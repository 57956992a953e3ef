"""What the engine computes is the model: its log-probabilities against plain numpy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvalet.core.request import SamplingParams
from kvalet.engine.ggml.engine import load_engine
from kvalet.model.gguf import GGUFFile
from tests.engine.reference_llama import ReferenceLlama
from tests.engine.steps import chat, generate
from tests.engine.tiny_models import write_tiny_llama

pytestmark = pytest.mark.native

# 300 tokens: past a chunk of 256, and the trained context of the yarn variant
PROMPT = [int(token) for token in np.random.default_rng(7).integers(3, 640, 300)]


def error_of(path: Path) -> float:
    """Root mean square difference of the engine's log-probabilities after the prompt, over all of
    the vocabulary, from the reference's; in units of their spread."""
    engine = load_engine(GGUFFile.open(path), num_pages=12, threads=2, poison=True)
    everything = SamplingParams(temperature=0, logprobs=True, num_probs=engine.info.num_vocab)
    asked = chat(1, PROMPT, range(11, 0, -1), params=everything)
    generate(engine, [asked], 1, chunk=64)
    engine.close()
    expected = ReferenceLlama(path).logprobs(PROMPT)[-1]
    computed = np.empty_like(expected)
    for token, logprob in asked.drawn[0].top:
        computed[token] = logprob
    return float(np.sqrt(((computed - expected) ** 2).mean()) / expected.std())


VARIANTS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "tied, biases": {"tied": True, "biases": True},
    "llama3 rope factors": {"rope_factors": True},
    "own head dimension": {"head_dim": 32},
    "one kv head": {"n_kv_head": 1},
    "no sharing": {"n_kv_head": 4},
    "linear rope": {
        "metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    },
    "yarn": {
        "metadata": {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 128,
        }
    },
    "part of each head rotated": {"metadata": {"llama.rope.dimension_count": 8}},
    "sliding window": {"metadata": {"llama.attention.sliding_window": 70}},
    "sentencepiece vocabulary": {"tokenizer": "llama"},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_logprobs_are_the_models(variant: dict[str, Any], tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="F32", **variant)
    assert error_of(path) < 1e-3  # f16 cells; the rest is f32


@pytest.mark.parametrize("weight_type", ["F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q4_K", "Q6_K"])
def test_weight_types_are_computed_as_they_are(weight_type: str, tmp_path: Path) -> None:
    """ggml rounds activations to what a weight type multiplies with, so there is more of an error
    than with f32; a wrong scale or a swapped nibble would be of the order of 1."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type=weight_type, seed=1)
    assert error_of(path) < 0.06
