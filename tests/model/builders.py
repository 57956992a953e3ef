"""Writes small GGUF files for tests, with the `gguf` package: any metadata and F32 tensors, and
vocabularies of a few tokens that show one behaviour each."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

Value = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool]


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    architecture: str = "llama",
) -> Path:
    """`tensors` are F32, by name and shape in ggml's order, filled with 0, 1, 2, ..."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, shape in (tensors or {}).items():
        values = np.arange(np.prod(shape), dtype=np.float32)
        writer.add_tensor(name, values.reshape(tuple(reversed(shape))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: GGUFWriter, key: str, value: Value) -> None:
    """One metadata pair, of the GGUF type that the Python value says."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


Special = Mapping[str, TokenType]
CONTROL: Special = {"<|end|>": TokenType.CONTROL, "<|go|>": TokenType.CONTROL}


def write_bpe(
    path: Path,
    words: Sequence[str] = (),
    *,
    special: Special = CONTROL,
    metadata: Mapping[str, Value] | None = None,
) -> Path:
    """A byte-level BPE vocabulary: `special` tokens first, then all bytes, then the beginnings of
    `words` (in GPT-2's spelling), each joined with its next letter. EOS is token 0."""
    tokens = [*special, *_byte_letters()]
    merges = []
    for word in words:
        for end in range(1, len(word)):
            if word[: end + 1] not in tokens:
                tokens.append(word[: end + 1])
                merges.append(f"{word[:end]} {word[end]}")
    normal = [TokenType.NORMAL] * (len(tokens) - len(special))
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in (*special.values(), *normal)],
        "tokenizer.ggml.merges": merges or ["a b"],
        "tokenizer.ggml.eos_token_id": 0,
    }
    return write_gguf(path, {**keys, **(metadata or {})})


def write_spm(
    path: Path,
    pieces: Mapping[str, float],
    *,
    special: Special = CONTROL,
    has_bytes: bool = True,
    metadata: Mapping[str, Value] | None = None,
) -> Path:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, bytes, `special`, then `pieces` by score."""
    head = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    data = {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)} if has_bytes else {}
    kinds = {**head, **data, **special, **dict.fromkeys(pieces, TokenType.NORMAL)}
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(kinds),
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds.values()],
        "tokenizer.ggml.scores": [float(pieces.get(text, 0.0)) for text in kinds],
    }
    return write_gguf(path, {**keys, **(metadata or {})})


def _byte_letters() -> list[str]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(0x100 + index) for index in range(len(hidden))]


def write_wheel(folder: Path, package: str, files: Mapping[str, bytes]) -> None:
    """Version 1.0 of a package that holds `files`, as pip takes it."""
    info = f"{package}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n"
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(f"{package}/{name}", content)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
