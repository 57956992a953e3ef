"""Text to token ids and back, as a model file's metadata describes it.

Special tokens are cut out first; the rest goes to the file's own scheme (`bpe.py`,
`sentencepiece.py`). Immutable after load, so any thread may use it. Text cannot spell a control
token unless the caller says so.
"""

from collections.abc import Iterable
from typing import Final, Protocol, Self

from kvalet.errors import ModelFileError
from kvalet.model.bpe import BytePairs
from kvalet.model.gguf import GGUFFile
from kvalet.model.sentencepiece import SentencePieces
from kvalet.model.special_tokens import SpecialTokens
from kvalet.model.vocabulary import SILENT_KINDS, TokenKind, Vocabulary


class Scheme(Protocol):
    """How text between special tokens becomes ids, and a token's text bytes."""

    add_bos: bool

    def encode(self, text: str, after_text: bool) -> list[int]: ...

    def token_bytes(self, text: str, kind: int) -> bytes: ...


class Tokenizer:
    """The tokenizer of one model file."""

    def __init__(self, file: GGUFFile) -> None:
        vocabulary = Vocabulary.from_gguf(file)
        self._vocabulary = vocabulary
        self._scheme = _scheme(file, vocabulary)
        self.num_vocab = vocabulary.num_tokens
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eog_ids = vocabulary.eog_ids  # each of them ends a generation
        self.add_bos = self.bos_id is not None and file.flag(
            "tokenizer.ggml.add_bos_token", self._scheme.add_bos
        )
        self.add_eos = self.eos_id is not None and file.flag("tokenizer.ggml.add_eos_token", False)
        swallowing = _swallowing(file, vocabulary)
        user_defined = _ids_by_text(vocabulary, frozenset({TokenKind.USER_DEFINED}))
        silent = _ids_by_text(vocabulary, SILENT_KINDS)
        self._most_bytes = max(len(text.encode("utf-8", "replace")) for text in vocabulary.texts)
        self._is_swallowing = bool(swallowing)
        self._untrusted = SpecialTokens(user_defined, swallowing)
        self._trusted = SpecialTokens(user_defined | silent, swallowing)

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Raises ModelFileError for what is missing, broken or not supported, by name."""
        return cls(file)

    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        """Ids of a text. `add_bos` begins with BOS if the model wants one (`self.add_bos`) and the
        text does not already; `parse_special` lets the text spell control tokens."""
        specials = self._trusted if parse_special else self._untrusted
        ids: list[int] = []
        after_text = False
        for part in specials.split(_valid_unicode(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._scheme.encode(part, after_text)
            after_text = isinstance(part, str)
        if add_bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at least, without tokenising it: no token is longer
        than the vocabulary's longest. 0 where tokens may take any amount of white space."""
        num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        return 0 if self._is_swallowing else -(-num_bytes // self._most_bytes)

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """The bytes a token adds to a stream, perhaps a part of a UTF-8 character. Control tokens
        add nothing unless `special`, which gives their text."""
        kind = self._vocabulary.kinds[token]
        if kind in SILENT_KINDS and not special:
            return b""
        return self._scheme.token_bytes(self._vocabulary.texts[token], kind)

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(token, special) for token in ids).decode(
            "utf-8", "replace"
        )

    def is_control(self, token: int) -> bool:
        """Whether it stands for no text: control tokens, the unknown token."""
        return self._vocabulary.kinds[token] in SILENT_KINDS

    def token_text(self, token: int) -> str:
        """As the file spells it, for people; bytes that are not UTF-8 become U+FFFD."""
        text = self._vocabulary.texts[token]
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_SCHEMES: Final[dict[str, type[BytePairs] | type[SentencePieces]]] = {
    "gpt2": BytePairs,
    "llama": SentencePieces,
}


def _scheme(file: GGUFFile, vocabulary: Vocabulary) -> Scheme:
    model = file.text("tokenizer.ggml.model")
    if model not in _SCHEMES:
        raise ModelFileError(
            f"{file.path}: the tokenizer model {model!r} is not supported; "
            f"supported are {', '.join(_SCHEMES)}"
        )
    return _SCHEMES[model](file, vocabulary)


def _ids_by_text(vocabulary: Vocabulary, kinds: frozenset[TokenKind]) -> dict[str, int]:
    return {
        text: id_
        for id_, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True))
        if kind in kinds and text
    }


def _swallowing(file: GGUFFile, vocabulary: Vocabulary) -> frozenset[int]:
    """Phi-3's special tokens take the white space after them; files do not say so but by name."""
    name = file.text("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    special = _ids_by_text(vocabulary, SILENT_KINDS | {TokenKind.USER_DEFINED})
    plain = {"<unk>", "<s>", "<|endoftext|>"}
    return frozenset(id_ for text, id_ in special.items() if text not in plain)


def _valid_unicode(text: str) -> str:
    """Surrogate pairs joined, lone surrogates replaced: what UTF-8 can carry."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
