"""What a model file must have for the engine to take it, and what is made of its weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from kvalet.engine import native
from kvalet.engine.ggml.architectures.tensors import Need, Use
from kvalet.engine.ggml.backend import Backend
from kvalet.engine.ggml.engine import load_engine
from kvalet.engine.ggml.graphs import bucket
from kvalet.engine.ggml.weights import Weights
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile
from tests.engine.tiny_models import write_tiny_llama

pytestmark = pytest.mark.native

REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"general.architecture": "mystery"}, "'mystery' is not supported .*llama"),
    "experts": ({"llama.expert_count": 8}, "mixture-of-experts"),
    "head dimension": ({"llama.attention.key_length": 24}, "keys of 24"),
    "value dimension": ({"llama.attention.value_length": 32}, "values of 32"),
    "heads": ({"llama.attention.head_count_kv": 3}, "cannot share 3 heads"),
    "no layers": ({"llama.block_count": 0}, "'llama.block_count' is 0"),
    "more layers than there are": ({"llama.block_count": 3}, "'blk.2.attn_norm.weight' is missing"),
    "width": ({"llama.embedding_length": 128}, "'token_embd.weight' has the shape"),
    "norm": ({"llama.attention.layer_norm_rms_epsilon": "big"}, "rms_epsilon' is not a number"),
    "rope scaling": ({"llama.rope.scaling.type": "longrope"}, "'longrope' is not supported"),
    "rope factors": ({"llama.rope.scaling.type": "llama3"}, "'rope_freqs.weight' is missing"),
    "rope dimensions": ({"llama.rope.dimension_count": 7}, "'llama.rope.dimension_count' is 7"),
}


@pytest.mark.parametrize(("metadata", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", metadata=metadata)
    with pytest.raises(ModelFileError, match=message) as caught:
        load_engine(GGUFFile.open(path), num_pages=4, threads=1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_up.weight"])
def test_a_type_that_ggml_would_crash_on_is_refused(name: str, tmp_path: Path) -> None:
    """ggml says that it takes such weights, and dies when it computes."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="F32")
    data = bytearray(path.read_bytes())
    entry = data.index(name.encode()) + len(name)
    dims_bytes = 4 + 2 * 8
    kind = entry + dims_bytes
    assert int.from_bytes(data[kind : kind + 4], "little") == GGMLQuantizationType.F32
    data[kind : kind + 4] = int(GGMLQuantizationType.I32).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=f"'{name}' has the type i32"):
        load_engine(GGUFFile.open(path), num_pages=4, threads=1)


@pytest.mark.parametrize(
    ("weight_type", "is_repacked", "granularity"),
    [
        ("F16", False, 1),
        ("Q8_0", False, 1),
        ("Q4_0", True, 1),
        ("Q4_K", True, 4),
        ("Q6_K", False, 1),
    ],
)
def test_repacked_where_bits_are_kept(
    weight_type: str, is_repacked: bool, granularity: int, tmp_path: Path
) -> None:
    """As measured on x86-64; on other processors everything stays plain."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type=weight_type)
    with GGUFFile.open(path) as file, Backend(threads=1) as backend:
        if backend.repack_buffer_type is None:
            pytest.skip("this processor's ggml repacks nothing")
        weights = Weights(file, backend, None)
        shape = file.tensors["blk.0.ffn_up.weight"].shape
        up = weights.load({"up": Need("blk.0.ffn_up", Use.LINEAR, shape)})["up"]
        assert bool(weights.copied_bytes) == is_repacked
        assert weights.granularity == granularity
        mapped = file.address(file.tensors["blk.0.ffn_up.weight"])
        assert (up.tensor.contents.data == mapped) != is_repacked
        weights.close()


def test_a_tied_embedding_is_read_plain_and_multiplied_repacked(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="Q4_0", tied=True)
    with GGUFFile.open(path) as file, Backend(threads=1) as backend:
        if backend.repack_buffer_type is None:
            pytest.skip("this processor's ggml repacks nothing")
        weights = Weights(file, backend, None)
        shape = file.tensors["token_embd.weight"].shape
        needs = {use.name: Need("token_embd", use, shape) for use in (Use.ROWS, Use.LINEAR)}
        loaded = weights.load(needs)
        assert loaded["ROWS"].tensor.contents.data != loaded["LINEAR"].tensor.contents.data
        weights.close()


@pytest.mark.parametrize("weight_type", ["F32", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_our_kernels_take_the_weights_of_types_they_have(weight_type: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type=weight_type, tied=True)
    with GGUFFile.open(path) as file, Backend(threads=1) as backend:
        weights = Weights(file, backend, native.load())
        shape = file.tensors["token_embd.weight"].shape
        output = weights.load({"output": Need("token_embd", Use.LINEAR, shape)})["output"]
        assert output.packed is not None
        assert (output.packed.num_in, output.packed.num_out) == shape
        assert (weights.granularity, len(weights.kinds)) == (1, 1)
        weights.close()


@pytest.mark.parametrize("granularity", [1, 2, 4])
@pytest.mark.parametrize("most", [1, 7, 64, 100, 512])
def test_buckets(granularity: int, most: int) -> None:
    shapes = [bucket(count, granularity, most) for count in range(1, most + 1)]
    assert all(shape >= count for count, shape in enumerate(shapes, 1))
    assert all(shape % granularity == 0 for shape in shapes)
    assert shapes == sorted(shapes)
    assert max(shapes) < most + granularity
    assert len(set(shapes)) <= 8 + 7 + most // 32
    assert bucket(0, granularity, most) == bucket(1, granularity, most)
