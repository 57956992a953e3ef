"""A file's digest: what it covers, and that it costs no pass over the weights."""

import shutil
from pathlib import Path

import pytest
from tests.engine.tiny_models import write_tiny_llama

from kvalet.model.digest import SAMPLE_BYTES, SAMPLES, model_digest, samples
from kvalet.model.gguf import GGUFFile, TensorInfo

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", weight_type="F32")


def digest(path: Path) -> str:
    with GGUFFile.open(path) as file:
        return model_digest(file)


def changed(model: Path, target: Path, offset: int) -> str:
    """The digest of a copy in which one bit is another."""
    data = bytearray(model.read_bytes())
    data[offset] ^= 1
    target.write_bytes(data)
    return digest(target)


def test_the_same_content_is_the_same_model(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(model, tmp_path / "renamed.gguf"))
    assert digest(copy) == digest(model)


def test_every_tensor_counts(model: Path, tmp_path: Path) -> None:
    """A bit at its beginning and one at its end: of a model trained further, all have changed."""
    with GGUFFile.open(model) as file:
        tensors = list(file.tensors.values())
    assert any(tensor.num_bytes > SAMPLES * SAMPLE_BYTES for tensor in tensors)
    for tensor in tensors:
        for offset in (tensor.offset, tensor.offset + tensor.num_bytes - 1):
            assert changed(model, tmp_path / "other.gguf", offset) != digest(model), tensor.name


def test_what_no_sample_has_is_not_seen(model: Path, tmp_path: Path) -> None:
    """A stated limit (ADR 0011)."""
    with GGUFFile.open(model) as file:
        large = max(file.tensors.values(), key=lambda tensor: tensor.num_bytes)
    between = large.offset + SAMPLE_BYTES
    assert changed(model, tmp_path / "other.gguf", between) == digest(model)
    assert changed(model, tmp_path / "other.gguf", between - 1) != digest(model)


def test_metadata_counts(model: Path, tmp_path: Path) -> None:
    key = model.read_bytes().index(b"<|endoftext|>")
    assert changed(model, tmp_path / "other.gguf", key) != digest(model)


def test_the_size_counts(model: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer.gguf"
    longer.write_bytes(model.read_bytes() + b"\0")
    assert digest(longer) != digest(model)


def test_what_is_read_of_a_large_tensor_does_not_grow_with_it() -> None:
    giga = TensorInfo("large", 0, "f32", (1 << 30,), 4096, 4 << 30)
    assert list(samples(giga)) == [
        (4096, 4096),
        (4096 + ((4 << 30) - 4096) // 3, 4096),
        (4096 + 2 * ((4 << 30) - 4096) // 3, 4096),
        (4 << 30, 4096),
    ]
    small = TensorInfo("small", 0, "f32", (100,), 64, 400)
    assert list(samples(small)) == [(64, 400)]
