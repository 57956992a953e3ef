"""Tokens matched as they stand: who may spell them, which one wins, what they say."""

import threading
from pathlib import Path

import pytest
from gguf import TokenType
from hypothesis import given
from hypothesis import strategies as st
from tests.model.builders import Value, write_bpe, write_spm

from kvalet.model.gguf import GGUFFile
from kvalet.model.special_tokens import SpecialTokens
from kvalet.model.tokenizer import Tokenizer

SPECIAL = {
    "<|im_end|>": TokenType.CONTROL,
    "<|go|>": TokenType.CONTROL,
    "<b>": TokenType.USER_DEFINED,
    "<b><b>": TokenType.USER_DEFINED,
    "<|pad|>": TokenType.UNKNOWN,
}
WITH_BOS: dict[str, Value] = {
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.add_bos_token": True,
}


def load(path: Path) -> Tokenizer:
    with GGUFFile.open(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("special") / "v.gguf"
    return load(write_bpe(path, special=SPECIAL, metadata=WITH_BOS))


PARTS = st.lists(st.sampled_from([*SPECIAL, "a", " ", "<", "|", "<|im_end", "\U0001f600"]))


@given(parts=PARTS)
def test_text_never_spells_a_control_token(tokenizer: Tokenizer, parts: list[str]) -> None:
    ids = tokenizer.encode("".join(parts))
    assert not any(tokenizer.is_control(token) for token in ids)
    assert tokenizer.decode(ids) == "".join(parts)


@given(parts=PARTS)
def test_trusted_text_comes_back_with_its_tokens(tokenizer: Tokenizer, parts: list[str]) -> None:
    ids = tokenizer.encode("".join(parts), parse_special=True)
    assert tokenizer.decode(ids, special=True) == "".join(parts)


def test_control_tokens_are_found_in_trusted_text_only(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|go|>a<|im_end|>", parse_special=True)[::2] == [1, 0]
    assert len(tokenizer.encode("<|go|>")) == len("<|go|>")


def test_user_defined_tokens_are_always_found_the_longest_first(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<b><b><b>") == [3, 2]
    assert tokenizer.decode([3, 2]) == "<b><b><b>"


def test_control_tokens_say_nothing_unless_asked(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(0) == b""
    assert tokenizer.token_bytes(0, special=True) == b"<|im_end|>"
    assert [tokenizer.is_control(token) for token in range(6)] == [1, 1, 0, 0, 1, 0]


def test_bos_begins_once_and_only_where_the_model_wants_it(tmp_path: Path) -> None:
    wants = load(write_bpe(tmp_path / "a.gguf", special=SPECIAL, metadata=WITH_BOS))
    a = wants.encode("a")
    assert wants.encode("a", add_bos=True) == [1, *a]
    assert wants.encode("<|go|>a", add_bos=True, parse_special=True) == [1, *a]
    assert wants.encode("", add_bos=True) == [1]
    plain = load(write_bpe(tmp_path / "b.gguf", special=SPECIAL))
    assert (plain.bos_id, plain.add_bos) == (None, False)
    assert plain.encode("a", add_bos=True) == a


def test_what_ends_a_turn(tmp_path: Path) -> None:
    special = {
        "<eos>": TokenType.CONTROL,
        "<|eot_id|>": TokenType.USER_DEFINED,  # as some files have it
        "</s>": TokenType.USER_DEFINED,  # HTML
        "<|turn|>": TokenType.CONTROL,
        "<|other|>": TokenType.CONTROL,
    }
    metadata: dict[str, Value] = {"tokenizer.ggml.eot_token_id": 3}
    tokenizer = load(
        write_bpe(tmp_path / "v.gguf", ["<|end|>"], special=special, metadata=metadata)
    )
    assert tokenizer.eog_ids == {0, 1, 3}
    assert all(tokenizer.is_control(token) for token in tokenizer.eog_ids)
    assert tokenizer.encode("</s>") == [2]


def test_white_space_after_phi3s_tokens_is_theirs(tmp_path: Path) -> None:
    metadata: dict[str, Value] = {"general.name": "Phi-3 mini"}
    tokenizer = load(write_spm(tmp_path / "v.gguf", {"a": -1.0, "\u2581": -2.0}, metadata=metadata))
    ids = tokenizer.encode("<|go|>\n a<s>\n", parse_special=True)
    assert tokenizer.decode(ids, special=True) == "<|go|> a<s> \n"


def test_what_lies_between_is_never_empty() -> None:
    specials = SpecialTokens({"<a>": 1, "<": 2, "xyz": 3}, frozenset())
    assert list(specials.split("<a><a>< xy xyz")) == [1, 1, 2, " xy ", 3]
    assert list(specials.split("")) == []
    assert list(SpecialTokens({}, frozenset()).split("any")) == ["any"]


def test_threads_may_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    text = "some text <b> with \U0001f600 all sorts of <|go|> things " * 50
    expected = tokenizer.encode(text, parse_special=True)
    results: list[list[int]] = []

    def work() -> None:
        results.extend(tokenizer.encode(text, parse_special=True) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 20
