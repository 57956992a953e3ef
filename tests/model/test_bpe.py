"""Byte-level BPE: every byte survives, pieces are cut by the file's rule, merges go by rank."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.builders import Value, write_bpe

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile
from kvalet.model.pretokenizers import SPLIT_RULES
from kvalet.model.tokenizer import Tokenizer

WORDS = ("\u0120the", "there", "ing", "123")


def load(path: Path) -> Tokenizer:
    with GGUFFile.open(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(write_bpe(tmp_path_factory.mktemp("bpe") / "v.gguf", WORDS))


def texts(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token) for token in tokenizer.encode(text)]


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_has_fewer_tokens_than_it_must(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


@pytest.mark.parametrize("text", ["", "\0", "a\0\0b", "\U0001f600\u200d\U0001f525", " \n\t "])
def test_odd_texts_come_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_surrogates_are_joined_or_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00 \ud83d!")) == "\U0001f600 \ufffd!"


def test_words_are_joined_and_a_space_belongs_to_the_next(tokenizer: Tokenizer) -> None:
    assert texts(tokenizer, "there the sing") == ["there", "\u0120the", "\u0120", "s", "ing"]


def test_merges_do_not_cross_pieces(tmp_path: Path) -> None:
    tokenizer = load(write_bpe(tmp_path / "v.gguf", ["a1"]))
    assert texts(tokenizer, "a1") == ["a", "1"]


CUTS = [
    ("gpt-2", "it's 1234!?  x\n", ["it", "'s", "_1234", "!?", "_", "_x", "\n"]),
    ("smollm", "it's 123!?", ["it", "'s", "_", "1", "2", "3", "!?"]),
    ("default", "a=b 1234!", ["a", "=", "b", "_", "123", "4", "!"]),
    ("llama-bpe", "IT'S 12345\n\n ok", ["IT", "'S", "_", "123", "45", "\n\n", "_ok"]),
    ("llama-bpe", "x (a) _b\t\n  y", ["x", "_(", "a", ")", "__", "b", "\t\n", "_", "_y"]),
    ("qwen2", "It's 123 ok", ["It", "'s", "_", "1", "2", "3", "_ok"]),
    ("qwen35", "e\u0301a 12", ["e\u0301a", "_", "1", "2"]),
    ("tekken", "HelloWorld 12/\n", ["Hello", "World", "_", "1", "2", "/\n"]),
    (
        "deepseek-llm",
        "Hi \u4f60\u597d 12.5\n",
        ["Hi", "_", "\u4f60\u597d", "_", "12", ".", "5", "\n"],
    ),
]


@pytest.mark.parametrize(("rule", "text", "pieces"), CUTS)
def test_rules_cut_where_they_should(rule: str, text: str, pieces: list[str]) -> None:
    cut = SPLIT_RULES[rule].pre_tokenizer().pre_tokenize_str(text)
    shown = [text[start:end].replace(" ", "_") for _, (start, end) in cut]
    assert shown == pieces


def test_a_whole_token_goes_before_merges_where_the_rule_says(tmp_path: Path) -> None:
    """The token exists, but its merges do not lead to it."""
    for rule, expected in (("llama-bpe", ["abc"]), ("dbrx", ["a", "bc"])):
        path = write_bpe(
            tmp_path / f"{rule}.gguf",
            ["bc", "abc"],
            metadata={"tokenizer.ggml.pre": rule, "tokenizer.ggml.merges": ["b c"]},
        )
        assert texts(load(path), "abc") == expected


@pytest.mark.parametrize("rule", ["llama-bpe", "deepseek-llm"])
def test_long_runs_take_linear_time(tmp_path: Path, rule: str) -> None:
    tokenizer = load(write_bpe(tmp_path / "v.gguf", metadata={"tokenizer.ggml.pre": rule}))
    start = time.perf_counter()
    for character in "a 1'<\n\u00e9":
        ids = tokenizer.encode(character * 40_000 + "x")
        assert len(ids) == 40_000 * len(character.encode()) + 1
    assert time.perf_counter() - start < 10  # linear: well under one; quadratic: minutes


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, "splitting rule 'klingon'.*supported are .*qwen2"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer model 't5'.*supported are gpt2, llama"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "the eos token 9999 is not one of its"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "'tokenizer.ggml.token_type' has 2 of"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "'tokenizer.ggml.tokens' is not a list of strings"),
        ({"tokenizer.ggml.merges": "a b"}, "'tokenizer.ggml.merges' is not a list of strings"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, metadata: dict[str, Value], message: str) -> None:
    path = write_bpe(tmp_path / "v.gguf", metadata=metadata)
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_a_file_without_a_rule_uses_the_default_one(tmp_path: Path) -> None:
    path = write_bpe(tmp_path / "v.gguf", ["a=b"])
    content = path.read_bytes().replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.xxx")
    path.write_bytes(content)
    assert texts(load(path), "a=b") == ["a", "=", "b"]
