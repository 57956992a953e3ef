"""SentencePiece: joined by score, bytes where no piece fits, a space where the file wants one."""

import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.builders import Value, write_spm

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile
from kvalet.model.tokenizer import Tokenizer

S = "\u2581"
PIECES = {
    **{letter: -100.0 - index for index, letter in enumerate(f"{S}abcd")},
    "ab": -1.0,
    "bc": -2.0,
    "abc": -7.0,
    f"{S}a": -3.0,
    "cd": -4.0,
    "bcd": -5.0,
    "aba": -6.0,
    "ba": -8.0,
    f"{S}{S}": -9.0,
    f"{S}{S}{S}": -10.0,
    f"{S}ab": -11.0,
}
BARE: dict[str, Value] = {"tokenizer.ggml.add_space_prefix": False}


def load(path: Path) -> Tokenizer:
    with GGUFFile.open(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(write_spm(tmp_path_factory.mktemp("spm") / "v.gguf", PIECES, metadata=BARE))


def texts(tokenizer: Tokenizer, text: str, parse_special: bool = False) -> list[str]:
    ids = tokenizer.encode(text, parse_special=parse_special)
    return [tokenizer.token_text(token) for token in ids]


def joined(text: str, scores: Mapping[str, float]) -> list[str]:
    """The rule as it is defined: again and again, join the best-scored neighbours, leftmost first,
    whose joined text is a piece."""
    parts = list(text)
    while True:
        pairs = [
            (-scores[left + right], at)
            for at, (left, right) in enumerate(pairwise(parts))
            if left + right in scores
        ]
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(text=st.text("abcd ", max_size=40))
def test_pieces_are_joined_by_the_rule(bare: Tokenizer, text: str) -> None:
    assert texts(bare, text) == joined(text.replace(" ", S), PIECES)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=S)))
def test_every_text_comes_back(bare: Tokenizer, text: str) -> None:
    assert bare.decode(bare.encode(text)) == text


def test_what_is_no_piece_becomes_bytes(bare: Tokenizer) -> None:
    assert texts(bare, "ab\U0001f600\n") == [
        "ab",
        "<0xF0>",
        "<0x9F>",
        "<0x98>",
        "<0x80>",
        "<0x0A>",
    ]
    assert bare.token_bytes(bare.encode("\n")[0]) == b"\n"


def test_without_byte_tokens_it_becomes_the_unknown_token(tmp_path: Path) -> None:
    path = write_spm(tmp_path / "v.gguf", PIECES, has_bytes=False, metadata=BARE)
    assert texts(load(path), "abx") == ["ab", "<unk>"]


def test_a_space_goes_before_text_that_begins_or_follows_a_special_token(tmp_path: Path) -> None:
    tokenizer = load(write_spm(tmp_path / "v.gguf", PIECES))
    assert texts(tokenizer, "ab") == [f"{S}ab"]
    assert texts(tokenizer, "a<|end|>a", parse_special=True) == [f"{S}a", "<|end|>", f"{S}a"]
    assert tokenizer.encode("") == []
    assert tokenizer.decode(tokenizer.encode("ab")) == " ab"


def test_text_cannot_spell_bytes_or_control_tokens(bare: Tokenizer) -> None:
    ids = bare.encode("<0x41><s></s><unk>")
    assert bare.decode(ids) == "<0x41><s></s><unk>"
    assert not any(bare.is_control(token) for token in ids)
    assert bare.encode("<s>", parse_special=True) == [1]


def test_ids_and_flags_default_as_sentencepiece_has_them(bare: Tokenizer) -> None:
    assert (bare.bos_id, bare.eos_id) == (1, 2)
    assert bare.eog_ids == {2, bare.encode("<|end|>", parse_special=True)[0]}
    assert (bare.add_bos, bare.add_eos) == (True, False)


def test_long_texts_take_linear_time(bare: Tokenizer) -> None:
    start = time.perf_counter()
    for character in "a x\U0001f600":
        bare.encode(character * 40_000)
    assert time.perf_counter() - start < 10  # linear: well under one; quadratic: minutes


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.scores": [0.5]}, "'tokenizer.ggml.scores' has 1 of"),
        ({"tokenizer.ggml.add_space_prefix": 1}, "add_space_prefix' is not a boolean"),
        ({"tokenizer.ggml.tokens": ["<u>", "<s>", "</s>", "0A"]}, "byte token '0A' is not like"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, metadata: dict[str, Value], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(write_spm(tmp_path / "v.gguf", PIECES, metadata=metadata))
