"""Rotary position embedding as a model file asks for it.

What the metadata leaves open is derived as llama.cpp derives it, so that a file means the same.
"""

from dataclasses import dataclass
from typing import Final

import ggml

from kvalet.engine.ggml.backend import Tensor
from kvalet.engine.ggml.weights import Weights
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile

SCALING_TYPES: Final = ("none", "linear", "llama3", "yarn")
FACTORS_TENSOR: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Rope:
    """Arguments of ggml's `rope_ext`. `factors` divide the frequencies (Llama 3), one a pair."""

    mode: int  # which dimensions form a pair
    num_dims: int  # of each head, from its first; the rest is not rotated
    freq_base: float
    freq_scale: float  # positions are multiplied by it
    num_ctx_orig: int  # the context before scaling (yarn)
    ext_factor: float  # 0: no yarn
    attn_factor: float  # multiplies the rotated; ggml multiplies yarn's own correction to it
    beta_fast: float
    beta_slow: float
    factors: Tensor | None

    def apply(self, context: int, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate f32 `x` [head_dim, heads, width] to i32 `positions` [width]."""
        return ggml.ggml_rope_ext(
            context,
            x,
            positions,
            self.factors,
            self.num_dims,
            self.mode,
            self.num_ctx_orig,
            self.freq_base,
            self.freq_scale,
            self.ext_factor,
            self.attn_factor,
            self.beta_fast,
            self.beta_slow,
        )


def read_rope(file: GGUFFile, weights: Weights, mode: int, head_dim: int) -> Rope:
    """The rope of the file's architecture. Raises ModelFileError for a scaling it has no name for
    or dimensions that cannot be rotated."""
    prefix = f"{file.text('general.architecture')}.rope"
    num_dims = file.integer(f"{prefix}.dimension_count", head_dim)
    if num_dims % 2 or not 0 < num_dims <= head_dim:
        raise ModelFileError(
            f"{file.path}: '{prefix}.dimension_count' is {num_dims}, "
            f"not an even number up to the head dimension {head_dim}"
        )
    kind, freq_scale = _scaling(file, prefix)
    return Rope(
        mode=mode,
        num_dims=num_dims,
        freq_base=file.number(f"{prefix}.freq_base", 10000.0),
        freq_scale=freq_scale,
        num_ctx_orig=_original_context(file, prefix),
        ext_factor=file.number(f"{prefix}.scaling.yarn_ext_factor", 1.0) if kind == "yarn" else 0.0,
        attn_factor=file.number(f"{prefix}.scaling.attn_factor", 1.0),
        beta_fast=file.number(f"{prefix}.scaling.yarn_beta_fast", 32.0),
        beta_slow=file.number(f"{prefix}.scaling.yarn_beta_slow", 1.0),
        factors=_factors(weights, kind, num_dims),
    )


def _scaling(file: GGUFFile, prefix: str) -> tuple[str, float]:
    kind = file.text(f"{prefix}.scaling.type", "linear")
    if kind not in SCALING_TYPES:
        raise ModelFileError(
            f"{file.path}: the rope scaling {kind!r} is not supported "
            f"(supported: {', '.join(SCALING_TYPES)})"
        )
    factor = file.number(f"{prefix}.scaling.factor", file.number(f"{prefix}.scale_linear", 0.0))
    if kind in {"none", "llama3"} or factor == 0.0:
        return kind, 1.0
    return kind, 1.0 / factor


def _original_context(file: GGUFFile, prefix: str) -> int:
    trained = file.integer(f"{prefix.removesuffix('.rope')}.context_length")
    return file.integer(f"{prefix}.scaling.original_context_length", trained) or trained


def _factors(weights: Weights, kind: str, num_dims: int) -> Tensor | None:
    if kind == "llama3" or weights.has(FACTORS_TENSOR):
        return weights.vector(FACTORS_TENSOR, num_dims // 2)
    return None
