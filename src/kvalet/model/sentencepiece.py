"""SentencePiece BPE with scores and byte fallback (GGUF tokenizer model `llama`).

Neighbours whose joined text is a piece are joined, best score first, then leftmost; what is no
piece becomes bytes. The `tokenizers` library runs it: every cut of a piece into two is a merge,
ranked by the piece's score. The library knows no equal ranks; among equals the lower id goes first.
"""

import re
from collections.abc import Iterator
from typing import Final

from tokenizers import Tokenizer as Library
from tokenizers import models

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile
from kvalet.model.vocabulary import SILENT_KINDS, TokenKind, Vocabulary, is_valid_text

SCORES_KEY: Final = "tokenizer.ggml.scores"
SPACE: Final = "\u2581"
_BYTE_TEXT: Final = re.compile("<0x[0-9A-F]{2}>")
_NOT_JOINED: Final = SILENT_KINDS | {TokenKind.BYTE}
_SPELLED_PLAINLY: Final = SILENT_KINDS | {TokenKind.USER_DEFINED}


class SentencePieces:
    """Text to ids and back, for text without special tokens."""

    add_bos = True  # unless the file says otherwise

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary) -> None:
        """Raises ModelFileError for missing or short scores and misspelled byte tokens."""
        _check_byte_tokens(file, vocabulary)
        self._has_space_prefix = file.flag("tokenizer.ggml.add_space_prefix", True)
        unknown = None if vocabulary.unk_id is None else vocabulary.texts[vocabulary.unk_id]
        ids = {
            text: id_
            for id_, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True))
            if (kind not in SILENT_KINDS or text == unknown) and text and is_valid_text(text)
        }
        if unknown not in ids:
            unknown = None
        merges = list(_merges(_joined_pieces(vocabulary, _scores(file, vocabulary)), ids))
        self._library = Library(models.BPE(ids, merges, unk_token=unknown, byte_fallback=True))

    def encode(self, text: str, after_text: bool) -> list[int]:
        """`after_text`: text, not a special token, precedes; else a space is put before it where
        the vocabulary wants one."""
        if self._has_space_prefix and not after_text:
            text = " " + text
        escaped = text.replace(" ", SPACE)
        # As a batch, since `encode` keeps all other threads from running meanwhile.
        (encoding,) = self._library.encode_batch_fast([escaped], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def token_bytes(self, text: str, kind: int) -> bytes:
        if kind == TokenKind.BYTE:
            return bytes.fromhex(text[3:5])
        if kind not in _SPELLED_PLAINLY:
            text = text.replace(SPACE, " ")
        return text.encode("utf-8", "surrogateescape")


def _scores(file: GGUFFile, vocabulary: Vocabulary) -> list[float]:
    scores = file.numbers(SCORES_KEY)
    if len(scores) < vocabulary.num_tokens:
        raise ModelFileError(
            f"{file.path}: {SCORES_KEY!r} has {len(scores)} of {vocabulary.num_tokens} values"
        )
    values: list[float] = scores.tolist()
    return values


def _check_byte_tokens(file: GGUFFile, vocabulary: Vocabulary) -> None:
    for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True):
        if kind == TokenKind.BYTE and not _BYTE_TEXT.fullmatch(text):
            raise ModelFileError(f"{file.path}: the byte token {text!r} is not like '<0x0A>'")


def _joined_pieces(vocabulary: Vocabulary, scores: list[float]) -> list[str]:
    """Pieces that joining may give, the first to be joined first."""
    kinds = vocabulary.kinds
    joined = (id_ for id_ in range(vocabulary.num_tokens) if kinds[id_] not in _NOT_JOINED)
    return [vocabulary.texts[id_] for id_ in sorted(joined, key=lambda id_: -scores[id_])]


def _merges(pieces: list[str], ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    for piece in pieces:
        for cut in range(len(piece) - 1, 0, -1):
            left = piece[:cut]
            if left in ids:
                right = piece[cut:]
                if right in ids:
                    yield left, right
