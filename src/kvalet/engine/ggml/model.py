"""The seam between model files and graphs: what the engine asks of a loaded model."""

from collections.abc import Sequence
from typing import Protocol

from kvalet.engine.ggml.architectures.description import ModelDescription, Rope
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.builder import Builder


class Model(Protocol):
    """Made from a file: hyper-parameters (the description), weights, and how to compute with them.
    Its planes follow from the description (`planes.py`). Keeps nothing about sequences."""

    @property
    def description(self) -> ModelDescription: ...

    def build(self, graph: Builder, layers: Sequence[int]) -> Tensor:
        """Logits [num_vocab, outputs] of the rows that `graph.outputs` names, as if the model had
        these layers only; a layer's place among them is its place in the planes."""
        ...

    def rotate(self, context: Handle, rope: Rope, x: Tensor, positions: Tensor) -> Tensor:
        """f32 `x` [head_dim, heads, width] rotated to i32 `positions` [width], as a layer with this
        rope rotates its queries and keys."""
        ...

    def distinct_layers(self) -> list[int]:
        """One of every kind: layers of a kind are described alike and have weights of the same
        types."""
        ...
