"""What the files of most architectures say in the same way, read into parts of a description.

Whatever a file leaves open is derived as llama.cpp derives it, so that a file means the same.
"""

from typing import Final

from kvalet.engine import native
from kvalet.engine.ggml.architectures.description import AttentionMixer, Pairs, Rope
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile
from kvalet.model.hyperparameters import HyperParameters

HEAD_DIMS: Final = range(16, native.MAX_HEAD_DIM + 1, 16)  # what the attention kernels take
SCALING_TYPES: Final = ("none", "linear", "llama3", "yarn")
ROPE_FACTORS: Final = "rope_freqs"


def read_attention(
    keys: HyperParameters, file: GGUFFile, num_embd: int, pairs: Pairs
) -> AttentionMixer:
    """Of the layers, where they are all alike. Raises ModelFileError, as its siblings do."""
    num_heads = keys.integer("attention.head_count")
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise keys.fault(f"{num_heads} heads cannot share {num_kv_heads} heads of keys and values")
    head_dim = read_head_dim(keys, num_embd // num_heads)
    return AttentionMixer(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=keys.number("attention.scale", 0.0) or head_dim**-0.5,
        window=keys.integer("attention.sliding_window", 0),
        rope=read_rope(keys, file, head_dim, pairs),
    )


def read_head_dim(keys: HyperParameters, default: int) -> int:
    head_dim = keys.integer("attention.key_length", default)
    value_dim = keys.integer("attention.value_length", default)
    if head_dim != value_dim or head_dim not in HEAD_DIMS:
        raise keys.fault(
            f"keys of {head_dim} and values of {value_dim} dimensions are not supported "
            f"(they must be the same multiple of {HEAD_DIMS.step}, up to {HEAD_DIMS[-1]})"
        )
    return head_dim


def read_rope(keys: HyperParameters, file: GGUFFile, head_dim: int, pairs: Pairs) -> Rope:
    num_dims = keys.integer("rope.dimension_count", head_dim)
    if num_dims % 2 or not 0 < num_dims <= head_dim:
        raise keys.fault(
            f"'{keys.architecture}.rope.dimension_count' is {num_dims}, "
            f"not an even number up to the head dimension {head_dim}"
        )
    kind, freq_scale = _scaling(keys)
    num_ctx_train = keys.integer("context_length")
    has_factors = kind == "llama3" or f"{ROPE_FACTORS}.weight" in file.tensors
    return Rope(
        pairs=pairs,
        num_dims=num_dims,
        freq_base=keys.number("rope.freq_base", 10000.0),
        freq_scale=freq_scale,
        num_ctx_orig=keys.integer("rope.scaling.original_context_length", 0) or num_ctx_train,
        ext_factor=keys.number("rope.scaling.yarn_ext_factor", 1.0) if kind == "yarn" else 0.0,
        attn_factor=keys.number("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        factors=ROPE_FACTORS if has_factors else None,
    )


def _scaling(keys: HyperParameters) -> tuple[str, float]:
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in SCALING_TYPES:
        raise keys.fault(
            f"the rope scaling {kind!r} is not supported (supported: {', '.join(SCALING_TYPES)})"
        )
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0))
    if kind in {"none", "llama3"} or factor == 0.0:
        return kind, 1.0
    return kind, 1.0 / factor


def read_num_vocab(file: GGUFFile) -> int:
    embeddings = file.tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ModelFileError(f"{file.path}: the tensor 'token_embd.weight' is not a matrix")
    return embeddings.shape[1]
