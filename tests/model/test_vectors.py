"""Whole vocabularies: llama.cpp's own test vectors, and the default model's tokenizer."""

from pathlib import Path

import pytest

from kvalet.model import sources
from kvalet.model.gguf import GGUFFile
from kvalet.model.tokenizer import Tokenizer

VECTORS = Path(__file__).parents[3] / "shared" / "vocab"
PARTING = "\n__ggml_vocab_test__\n"
NUM_CASES = 47


def read_vectors(path: Path) -> list[tuple[str, list[int]]]:
    """Texts with their ids, without BOS."""
    texts = Path(f"{path}.inp").read_bytes().decode().split(PARTING)
    lines = Path(f"{path}.out").read_text().split("\n")
    ids = [[int(word) for word in line.split()] for line in lines]
    return list(zip(texts, ids, strict=True))


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "phi-3", "deepseek-llm"])
def test_ids_are_those_of_the_vectors(name: str) -> None:
    path = VECTORS / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"no test vectors at {path}")
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    vectors = read_vectors(path)
    assert len(vectors) == NUM_CASES
    for text, ids in vectors:
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) in (text, " " + text)  # SentencePiece adds a space


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    path = sources.cached_path(sources.DEFAULT_MODEL)
    if not path.exists():
        pytest.skip("the default model is not in the cache; `kvalet pull smollm2-135m` fetches it")
    with GGUFFile.open(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.mark.model
def test_default_model_text(smollm: Tokenizer) -> None:
    ids = smollm.encode("The capital of France is", add_bos=True)
    assert ids == [504, 3575, 282, 4649, 314]  # this model wants no BOS
    assert [smollm.token_text(token) for token in ids] == [
        "The",
        "\u0120capital",
        "\u0120of",
        "\u0120France",
        "\u0120is",
    ]
    assert len(smollm.encode("2024")) == 4  # digits are kept apart


@pytest.mark.model
def test_default_model_control_tokens(smollm: Tokenizer) -> None:
    assert (smollm.num_vocab, smollm.bos_id, smollm.eos_id) == (49152, 1, 2)
    assert smollm.eog_ids == {0, 2}
    assert smollm.encode("<|im_start|>user\n", parse_special=True) == [1, 4093, 198]
    assert smollm.decode([1, 4093, 198]) == "user\n"
