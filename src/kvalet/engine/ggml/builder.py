"""One graph under construction: the few operations architectures are made of.

Each adds nodes to the graph's context. Shapes are ggml's: the fastest dimension first, tokens last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import ggml

from kvalet.engine.ggml.architectures.description import Activation, Norm
from kvalet.engine.ggml.attention import Attention
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.linear import F32_BYTES, LinearKernels, Operand, together
from kvalet.engine.ggml.weights import Weight


@dataclass(frozen=True, slots=True)
class Builder:
    context: Handle
    tokens: Tensor  # i32 [width]
    positions: Tensor  # i32 [width]
    outputs: Tensor  # i32 [outputs]: rows whose logits are wanted
    attention: Attention
    kernels: LinearKernels

    def rows(self, x: Tensor, indices: Tensor) -> Tensor:
        """Columns of `x` (ggml calls them rows), as f32."""
        return ggml.ggml_get_rows(self.context, x, indices)

    def operand(self, x: Tensor) -> Operand:
        """f32 [num_in, width], to go into linear layers."""
        return Operand(lambda: x, lambda: self.kernels.quantised(self.context, x))

    def norm(self, x: Tensor, weight: Weight, norm: Norm) -> Operand:
        def floats() -> Tensor:
            normed = ggml.ggml_rms_norm(self.context, x, norm.eps)
            return ggml.ggml_mul(self.context, normed, weight.tensor)

        def columns() -> Tensor:
            return self.kernels.normed(self.context, x, weight.tensor, norm.eps)

        return Operand(floats, columns)

    def linear(self, x: Operand, weight: Weight, added: Tensor | None = None) -> Tensor:
        """[num_in, width] -> [num_out, width], plus `added` of that shape."""
        if weight.packed is not None:
            return self.kernels.product(self.context, x, [weight.packed], added)
        y = ggml.ggml_mul_mat(self.context, weight.tensor, x.floats)
        for more in (weight.bias, added):
            y = y if more is None else ggml.ggml_add(self.context, y, more)
        return y

    def linears(self, x: Operand, weights: Sequence[Weight]) -> list[Tensor]:
        """The same of several layers with one input, whose rows may be far apart in memory."""
        packed = together(weights)
        if packed is None:
            return [self.linear(x, weight) for weight in weights]
        product = self.kernels.product(self.context, x, packed, None)
        return self._split(product, [layer.num_out for layer in packed])

    def gated(self, activation: Activation, x: Operand, gate: Weight, up: Weight) -> Operand:
        match activation:
            case Activation.SWIGLU:
                return self._swiglu(x, gate, up)

    def split_heads(self, x: Tensor, num_heads: int) -> Tensor:
        """[heads * dim, width] -> [dim, heads, width]"""
        size, width, stride = x.contents.ne[0], x.contents.ne[1], x.contents.nb[1]
        dim = size // num_heads
        shape = (dim, num_heads, width)
        return ggml.ggml_view_3d(self.context, x, *shape, dim * F32_BYTES, stride, 0)

    def attend(self, place: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write the rows' keys and values to their cells of the layer at `place`, then let each row
        look at the cells of its sequence that it sees. [dim, heads, width], queries contiguous.
        -> f32 [heads * dim, width]"""
        return self.attention.build(self.context, place, query, key, value)

    def _swiglu(self, x: Operand, gate: Weight, up: Weight) -> Operand:
        packed = together([gate, up])
        if packed is not None:
            product = self.kernels.product(self.context, x, packed, None)
            return Operand(
                lambda: ggml.ggml_swiglu(self.context, product),
                lambda: self.kernels.swiglu(self.context, product),
            )
        gates, ups = self.linear(x, gate), self.linear(x, up)
        return self.operand(ggml.ggml_swiglu_split(self.context, gates, ups))

    def _split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """[sum of sizes, width] -> [size, width] each"""
        parts, first, width, stride = [], 0, x.contents.ne[1], x.contents.nb[1]
        for size in sizes:
            at = first * F32_BYTES
            parts.append(ggml.ggml_view_2d(self.context, x, size, width, stride, at))
            first += size
        return parts
