"""A description says all that a graph depends on, and the table of tensors all that is loaded."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvalet.engine.ggml.architectures import describe
from kvalet.engine.ggml.architectures.description import (
    Activation,
    AttentionMixer,
    FeedForward,
    LayerDescription,
    ModelDescription,
    Norm,
    Pairs,
    Rope,
)
from kvalet.engine.ggml.architectures.tensors import find, layer_needs, model_needs
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile
from tests.engine.tiny_models import write_tiny_llama

pytestmark = pytest.mark.native


def test_a_file_is_described_without_a_device(tmp_path: Path) -> None:
    keys = {
        "llama.attention.sliding_window": 9,
        "llama.attention.layer_norm_rms_epsilon": 0.5,
        "llama.rope.dimension_count": 8,
        "llama.rope.freq_base": 500.0,
        "llama.rope.scaling.factor": 4.0,
    }
    path = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=3, metadata=keys, rope_factors=True)
    with GGUFFile.open(path) as file:
        found = describe(file)
    rope = Rope(Pairs.NEIGHBOURS, 8, 500.0, 0.25, 2048, 0.0, 1.0, 32.0, 1.0, "rope_freqs")
    layer = LayerDescription(
        Norm(0.5), AttentionMixer(4, 2, 16, 0.25, 9, rope), FeedForward(128, Activation.SWIGLU)
    )
    assert found == ModelDescription(found.num_vocab, 64, (layer,) * 3, Norm(0.5), is_tied=False)


@pytest.mark.parametrize("tied", [False, True])
def test_the_table_lists_every_tensor_of_a_file(tmp_path: Path, tied: bool) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", tied=tied, rope_factors=True)
    with GGUFFile.open(path) as file:
        model = describe(file)
        needs = [*model_needs(model).values()]
        for index in range(len(model.layers)):
            needs += layer_needs(model, index).values()
        assert {find(file, need).name for need in needs} == set(file.tensors)


def test_a_bias_of_another_size_is_refused(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", biases=True)
    with GGUFFile.open(path) as file:
        needs = layer_needs(describe(file), 1)
        assert find(file, needs["key"].bias).shape == (32,)
        with pytest.raises(ModelFileError, match=r"'blk\.1\.attn_k\.bias' has the shape"):
            find(file, replace(needs["key"], shape=(64, 9)).bias)
