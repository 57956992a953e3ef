"""Byte-level BPE (GGUF tokenizer model `gpt2`), run by the `tokenizers` library.

Bytes are spelled as letters, as GPT-2 does: printable Latin-1 as itself, the rest from U+0100 on.
"""

from collections.abc import Iterator
from typing import Final

from tokenizers import Tokenizer as Library
from tokenizers import models

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile
from kvalet.model.pretokenizers import SPLIT_RULES, SplitRule
from kvalet.model.vocabulary import SILENT_KINDS, TokenKind, Vocabulary, is_valid_text


class BytePairs:
    """Text to ids and back, for text without special tokens."""

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary) -> None:
        """Raises ModelFileError for missing merges or an unknown splitting rule."""
        rule = _split_rule(file)
        ids = {
            text: id_
            for id_, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True))
            if kind not in SILENT_KINDS and text and is_valid_text(text)
        }
        merges = list(_merges(file.texts("tokenizer.ggml.merges"), ids))
        self._library = Library(models.BPE(ids, merges, ignore_merges=rule.ignore_merges))
        self._library.pre_tokenizer = rule.pre_tokenizer()
        self.add_bos = rule.add_bos  # unless the file says otherwise

    def encode(self, text: str, after_text: bool) -> list[int]:
        # As a batch, since `encode` keeps all other threads from running meanwhile.
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def token_bytes(self, text: str, kind: int) -> bytes:
        if kind in _SPELLED_PLAINLY:
            return text.encode("utf-8", "surrogateescape")
        return b"".join(_letter_bytes(letter) for letter in text)


# Their texts are written as they are read, not in byte letters.
_SPELLED_PLAINLY: Final = SILENT_KINDS | {TokenKind.USER_DEFINED}
_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN: Final = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_OF: Final = {chr(byte): bytes([byte]) for byte in _PRINTABLE} | {
    chr(0x100 + index): bytes([byte]) for index, byte in enumerate(_HIDDEN)
}


def _letter_bytes(letter: str) -> bytes:
    return _BYTE_OF.get(letter) or letter.encode("utf-8", "surrogateescape")


def _split_rule(file: GGUFFile) -> SplitRule:
    name = file.text("tokenizer.ggml.pre", "default")
    if name not in SPLIT_RULES:
        raise ModelFileError(
            f"{file.path}: the splitting rule {name!r} (tokenizer.ggml.pre) is not supported; "
            f"supported are {', '.join(sorted(SPLIT_RULES))}"
        )
    return SPLIT_RULES[name]


def _merges(lines: tuple[str, ...], ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    """In order of rank, those whose parts and result are tokens."""
    for line in lines:
        left, _, right = line.partition(" ")
        if left in ids and right in ids and left + right in ids:
            yield left, right
