"""One graph under construction: the few operations architectures are made of.

Each adds nodes to the graph's context. Shapes are ggml's: the fastest dimension first, tokens last.
"""

from dataclasses import dataclass

import ggml

from kvalet.engine.ggml.attention import PagedAttention
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.weights import Linear


@dataclass(frozen=True, slots=True)
class Builder:
    context: Handle
    tokens: Tensor  # i32 [width]
    positions: Tensor  # i32 [width]
    outputs: Tensor  # i32 [outputs]: rows whose logits are wanted
    attention: PagedAttention

    def rows(self, x: Tensor, indices: Tensor) -> Tensor:
        """Columns of `x` (ggml calls them rows), as f32."""
        return ggml.ggml_get_rows(self.context, x, indices)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return ggml.ggml_add(self.context, x, y)

    def linear(self, layer: Linear, x: Tensor) -> Tensor:
        y = ggml.ggml_mul_mat(self.context, layer.weight, x)
        return y if layer.bias is None else self.add(y, layer.bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return ggml.ggml_mul(self.context, ggml.ggml_rms_norm(self.context, x, eps), weight)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up"""
        return ggml.ggml_swiglu_split(self.context, gate, up)

    def split_heads(self, x: Tensor, num_heads: int) -> Tensor:
        """[heads * dim, width] -> [dim, heads, width]"""
        size, width = x.contents.ne[0], x.contents.ne[1]
        return ggml.ggml_reshape_3d(self.context, x, size // num_heads, num_heads, width)

    def attend(self, place: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write the rows' keys and values to their cells of the layer at `place` in the pool, then
        let each row look at its sequence's cells up to its own. -> f32 [heads * dim, width]"""
        return self.attention.build(self.context, place, query, key, value)
