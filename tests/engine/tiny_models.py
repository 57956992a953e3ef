"""Writes tiny random llama models as GGUF files, for tests that need a real file and a real engine.

The vocabulary covers every byte, some words and the chat tokens, so any text can be tokenised.
Rows of the output matrix that stand for unprintable bytes and control tokens are weak: what such a
model says is nonsense in printable ASCII, and it does not end by itself.
"""

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ggml
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, TokenType

from tests.model.builders import add_value

MetaValue = str | int | float | bool

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n'"
    " + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORD_TEXT = (
    "the of and a to in is you that it he was for on are as with his they I at be this have from "
    "or one had by word but not what all were we when your can said there use an each which she do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water been "
    "call who oil its now find long down day did get come made may part"
)
WORDS = tuple(WORD_TEXT.split())
VOCAB_MULTIPLE = 64
QUIET = 0.02  # what the rows of tokens that should not be said are multiplied by


@dataclass(frozen=True, slots=True)
class Vocabulary:
    model: str  # tokenizer.ggml.model
    tokens: list[str]
    types: list[TokenType]
    scores: list[float] | None
    merges: list[str] | None
    bos: int
    eos: int

    def is_spoken(self, token: int) -> bool:
        text = self.tokens[token].replace("\u0120", " ").replace("\u2581", " ")
        return self.types[token] is TokenType.NORMAL and text.isascii() and text.isprintable()


def write_tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    weight_type: str = "F16",
    output_type: str | None = None,
    tokenizer: str = "gpt2",
    n_ctx_train: int = 2048,
    n_layer: int = 2,
    n_embd: int | None = None,
    n_head: int = 4,
    n_kv_head: int = 2,
    head_dim: int | None = None,
    tied: bool = False,
    biases: bool = False,
    rope_factors: bool = False,
    metadata: Mapping[str, MetaValue] | None = None,
) -> Path:
    """Write the model to `path` and return it. `weight_type` is a ggml type name (F32, F16, BF16,
    Q4_0, Q4_1, Q8_0, Q4_K, ...); types in blocks of 256 get rows of 256 unless told otherwise.
    `tokenizer` is "gpt2" (BPE) or "llama" (SentencePiece). `metadata` overrides or adds keys."""
    block = GGML_BLOCK[weight_type]
    n_embd = n_embd or (256 if block == 256 else 64)
    head_dim = head_dim or n_embd // n_head
    vocabulary = bpe_vocabulary() if tokenizer == "gpt2" else spm_vocabulary()
    writer = GGUFWriter(path, "llama")
    keys = _hyperparameters(n_ctx_train, n_layer, n_embd, n_head, n_kv_head, head_dim)
    for key, value in {**keys, **(metadata or {})}.items():
        add_value(writer, key, value)
    _add_vocabulary(writer, vocabulary)
    rng = np.random.default_rng(seed)
    _add_embeddings(writer, rng, vocabulary, n_embd, output_type or weight_type, tied)
    if rope_factors:
        factors = np.geomspace(1.0, 8.0, head_dim // 2).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    shapes = tuple(_layer_shapes(n_embd, n_head * head_dim, n_kv_head * head_dim))
    for layer in range(n_layer):
        _add_layer(writer, rng, f"blk.{layer}.", shapes, weight_type, biases)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def bpe_vocabulary() -> Vocabulary:
    """Control tokens, all bytes in GPT-2's spelling, then words with the merges that build them."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    num_control = len(tokens)
    tokens += [_byte_letter(byte) for byte in range(256)]
    merges: list[str] = []
    for word in [*(f"\u0120{word}" for word in WORDS), *WORDS]:
        for end in range(1, len(word)):
            if word[: end + 1] not in tokens:
                merges.append(f"{word[:end]} {word[end]}")
                tokens.append(word[: end + 1])
    types = [TokenType.CONTROL] * num_control + [TokenType.NORMAL] * (len(tokens) - num_control)
    _pad(tokens, types)
    return Vocabulary("gpt2", tokens, types, None, merges, bos=1, eos=2)


def spm_vocabulary() -> Vocabulary:
    """As Llama's: unknown, BOS, EOS, byte tokens, then pieces, the longer the likelier."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    pieces = ["\u2581", *(chr(code) for code in range(33, 127))]
    for word in [*(f"\u2581{word}" for word in WORDS), *WORDS]:
        pieces += [word[:end] for end in range(2, len(word) + 1) if word[:end] not in pieces]
    num_special = len(tokens)
    tokens += pieces
    types += [TokenType.NORMAL] * len(pieces)
    for name in ("<|im_start|>", "<|im_end|>"):
        tokens.append(name)
        types.append(TokenType.CONTROL)
    _pad(tokens, types)
    # Longer pieces first, then in order: every bigram on the way to a word is itself a piece.
    scores = [0.0] * num_special + [
        100.0 * len(token) - index for index, token in enumerate(tokens[num_special:])
    ]
    return Vocabulary("llama", tokens, types, scores, None, bos=1, eos=2)


def _pad(tokens: list[str], types: list[TokenType]) -> None:
    for index in range(-len(tokens) % VOCAB_MULTIPLE):
        tokens.append(f"<|reserved_{index}|>")
        types.append(TokenType.CONTROL)


def _byte_letter(byte: int) -> str:
    """GPT-2's printable stand-in for a byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in kept:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in kept].index(byte))


def _hyperparameters(
    n_ctx_train: int, n_layer: int, n_embd: int, n_head: int, n_kv_head: int, head_dim: int
) -> dict[str, MetaValue]:
    return {
        "llama.context_length": n_ctx_train,
        "llama.embedding_length": n_embd,
        "llama.block_count": n_layer,
        "llama.feed_forward_length": 2 * n_embd,
        "llama.attention.head_count": n_head,
        "llama.attention.head_count_kv": n_kv_head,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": 10000.0,
    }


def _add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges is not None:
        writer.add_tokenizer_pre("smollm")
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_add_bos_token(vocabulary.model == "llama")
    writer.add_add_space_prefix(vocabulary.model == "llama")
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_embeddings(
    writer: GGUFWriter,
    rng: np.random.Generator,
    vocabulary: Vocabulary,
    n_embd: int,
    output_type: str,
    tied: bool,
) -> None:
    """Token embeddings, the last norm and the output matrix; rows of quiet tokens are scaled down
    where they reach the logits."""
    loudness = np.array(
        [1.0 if vocabulary.is_spoken(t) else QUIET for t in range(len(vocabulary.tokens))],
        dtype=np.float32,
    )[:, None]
    embeddings = rng.standard_normal((len(loudness), n_embd), dtype=np.float32)
    _add_tensor(writer, "token_embd.weight", embeddings * (loudness if tied else 1), output_type)
    writer.add_tensor("output_norm.weight", _vector(rng, n_embd, 1.0))
    if not tied:
        output = 4 * _matrix(rng, len(loudness), n_embd) * loudness
        _add_tensor(writer, "output.weight", output, output_type)


def _add_layer(
    writer: GGUFWriter,
    rng: np.random.Generator,
    prefix: str,
    shapes: tuple[tuple[str, int, int], ...],
    weight_type: str,
    biases: bool,
) -> None:
    for name, rows, columns in shapes:
        _add_tensor(writer, f"{prefix}{name}.weight", _matrix(rng, rows, columns), weight_type)
        if biases and name.startswith("attn_"):
            writer.add_tensor(f"{prefix}{name}.bias", _vector(rng, rows, 0.0))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"{prefix}{name}.weight", _vector(rng, shapes[0][2], 1.0))


def _layer_shapes(n_embd: int, n_query: int, n_kv: int) -> Iterator[tuple[str, int, int]]:
    yield "attn_q", n_query, n_embd
    yield "attn_k", n_kv, n_embd
    yield "attn_v", n_kv, n_embd
    yield "attn_output", n_embd, n_query
    yield "ffn_gate", 2 * n_embd, n_embd
    yield "ffn_up", 2 * n_embd, n_embd
    yield "ffn_down", n_embd, 2 * n_embd


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float32]:
    return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(1.4 / columns**0.5)


def _vector(rng: np.random.Generator, size: int, mean: float) -> npt.NDArray[np.float32]:
    return mean + 0.1 * rng.standard_normal(size, dtype=np.float32)


GGML_BLOCK = {name: 256 if name.endswith("_K") else 32 for name in GGMLQuantizationType.__members__}


def _add_tensor(
    writer: GGUFWriter, name: str, matrix: npt.NDArray[np.float32], type_name: str
) -> None:
    kind = GGMLQuantizationType[type_name]
    if kind is GGMLQuantizationType.F32:
        writer.add_tensor(name, matrix)
        return
    matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    rows, columns = matrix.shape
    packed = np.empty((rows, ggml.ggml_row_size(int(kind), columns)), dtype=np.uint8)
    source = matrix.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    ggml.ggml_quantize_chunk(int(kind), source, packed.ctypes.data, 0, rows, columns, None)
    writer.add_tensor(name, packed, raw_dtype=kind)
