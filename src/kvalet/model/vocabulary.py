"""The tokens of a model file: their texts, kinds and special ids, checked once at load.

Knows nothing of how text is split into them. Token texts are as the file spells them (byte-level
letters for BPE, U+2581 for SentencePiece's space).
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile

TOKENS_KEY: Final = "tokenizer.ggml.tokens"
KINDS_KEY: Final = "tokenizer.ggml.token_type"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
USUAL_IDS: Final = {"unknown": 0, "bos": 1, "eos": 2}


class TokenKind(IntEnum):
    """GGUF's `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SILENT_KINDS: Final = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})  # they stand for no text

# Tokens that end a turn under any name a file gives their ids, as llama.cpp's server has it.
END_TEXTS: Final = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "</s>",
        "<EOT>",
        "[EOS]",
        "[EOT]",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    }
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token `id` has the text `texts[id]` and the kind `kinds[id]`."""

    texts: tuple[str, ...]
    kinds: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    eog_ids: frozenset[int]  # any of them ends a generation

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Raises ModelFileError naming the key that is missing, short or out of range."""
        texts = file.texts(TOKENS_KEY)
        if not texts:
            raise ModelFileError(f"{file.path}: {TOKENS_KEY!r} is empty")
        kinds = _kinds(file, len(texts))
        ids = _special_ids(file, len(texts))
        ends = {ids[name] for name in ("eos", "eot", "eom") if name in ids}
        ends |= _ends_by_text(texts, kinds)
        # User text must not spell a token that begins or ends a sequence, whatever its kind says.
        for token in ends | ({ids["bos"]} if "bos" in ids else set()):
            kinds[token] = TokenKind.CONTROL
        unk_id = ids.get("unknown")
        return cls(texts, tuple(kinds), ids.get("bos"), ids.get("eos"), unk_id, frozenset(ends))

    @property
    def num_tokens(self) -> int:
        return len(self.texts)


def special_text(file: GGUFFile, role: str) -> str:
    """The text of the token that plays a role ("bos", "eos"), or nothing where none does."""
    texts = file.texts(TOKENS_KEY)
    token = _special_ids(file, len(texts)).get(role)
    return "" if token is None else texts[token]


def _kinds(file: GGUFFile, num_tokens: int) -> list[int]:
    if KINDS_KEY not in file.metadata:
        return [TokenKind.NORMAL] * num_tokens
    kinds = file.numbers(KINDS_KEY)
    if len(kinds) < num_tokens:
        raise ModelFileError(f"{file.path}: {KINDS_KEY!r} has {len(kinds)} of {num_tokens} values")
    return [int(kind) for kind in kinds[:num_tokens].tolist()]


def _special_ids(file: GGUFFile, num_tokens: int) -> dict[str, int]:
    """The ids the file names, by role; SentencePiece files have usual ones."""
    ids = USUAL_IDS if file.text("tokenizer.ggml.model") == "llama" else {}
    for role in ("unknown", "bos", "eos", "eot", "eom"):
        key = f"tokenizer.ggml.{role}_token_id"
        if key in file.metadata:
            ids = {**ids, role: file.integer(key)}
    for role, token in ids.items():
        if not 0 <= token < num_tokens:
            raise ModelFileError(
                f"{file.path}: the {role} token {token} is not one of its {num_tokens} tokens"
            )
    return ids


def _ends_by_text(texts: tuple[str, ...], kinds: list[int]) -> set[int]:
    ends = {
        token
        for token, text in enumerate(texts)
        if text in END_TEXTS and _is_end(text, kinds[token])
    }
    if {"<|return|>", "<|call|>"} <= {texts[token] for token in ends}:
        # the harmony format: there <|end|> ends a message, not the turn
        ends = {token for token in ends if texts[token] != "<|end|>"}
    return ends


def _is_end(text: str, kind: int) -> bool:
    if kind == TokenKind.USER_DEFINED:
        return text != "</s>"  # then it is HTML's (Gemma)
    return kind == TokenKind.CONTROL


def is_valid_text(text: str) -> bool:
    """Whether the text is UTF-8 in the file, not bytes kept as surrogates."""
    return text.isascii() or not _SURROGATE.search(text)
