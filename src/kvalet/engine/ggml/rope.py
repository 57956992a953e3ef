"""Rotary position embedding, as a node of a graph."""

from typing import Final

import ggml

from kvalet.engine.ggml.architectures.description import Pairs, Rope
from kvalet.engine.ggml.backend import Handle, Tensor

_MODES: Final = {
    Pairs.NEIGHBOURS: ggml.GGML_ROPE_TYPE_NORMAL,
    Pairs.HALVES: ggml.GGML_ROPE_TYPE_NEOX,
}


def rotate(
    context: Handle, rope: Rope, factors: Tensor | None, x: Tensor, positions: Tensor
) -> Tensor:
    """f32 `x` [head_dim, heads, width] rotated to i32 `positions` [width]; `factors` divide the
    frequencies."""
    return ggml.ggml_rope_ext(
        context,
        x,
        positions,
        factors,
        rope.num_dims,
        _MODES[rope.pairs],
        rope.num_ctx_orig,
        rope.freq_base,
        rope.freq_scale,
        rope.ext_factor,
        rope.attn_factor,
        rope.beta_fast,
        rope.beta_slow,
    )
