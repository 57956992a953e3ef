"""One graph under construction: the few operations architectures are made of.

Each adds nodes to the graph's context. Shapes are ggml's: the fastest dimension first, tokens last.
"""

from dataclasses import dataclass

import ggml

from kvalet.engine.ggml.architectures.description import Activation, Norm
from kvalet.engine.ggml.attention import Attention
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.weights import Weight


@dataclass(frozen=True, slots=True)
class Builder:
    context: Handle
    tokens: Tensor  # i32 [width]
    positions: Tensor  # i32 [width]
    outputs: Tensor  # i32 [outputs]: rows whose logits are wanted
    attention: Attention

    def rows(self, x: Tensor, indices: Tensor) -> Tensor:
        """Columns of `x` (ggml calls them rows), as f32."""
        return ggml.ggml_get_rows(self.context, x, indices)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return ggml.ggml_add(self.context, x, y)

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """[num_in, columns] -> [num_out, columns]"""
        y = ggml.ggml_mul_mat(self.context, weight.tensor, x)
        return y if weight.bias is None else self.add(y, weight.bias)

    def norm(self, x: Tensor, weight: Weight, norm: Norm) -> Tensor:
        normed = ggml.ggml_rms_norm(self.context, x, norm.eps)
        return ggml.ggml_mul(self.context, normed, weight.tensor)

    def gated(self, activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
        match activation:
            case Activation.SWIGLU:
                return ggml.ggml_swiglu_split(self.context, gate, up)

    def split_heads(self, x: Tensor, num_heads: int) -> Tensor:
        """[heads * dim, width] -> [dim, heads, width]"""
        size, width = x.contents.ne[0], x.contents.ne[1]
        return ggml.ggml_reshape_3d(self.context, x, size // num_heads, num_heads, width)

    def attend(self, place: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write the rows' keys and values to their cells of the layer at `place`, then let each row
        look at the cells of its sequence that it sees. -> f32 [heads * dim, width]"""
        return self.attention.build(self.context, place, query, key, value)
