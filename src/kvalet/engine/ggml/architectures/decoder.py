"""The graph of a described model: a decoder whose layers may differ.

Knows how the parts of a description are put together, and nothing of where they came from. One
graph is built for each number of rows and outputs; a row's result does not depend on the others.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kvalet.engine.ggml.architectures.description import (
    AttentionMixer,
    ModelDescription,
    Rope,
)
from kvalet.engine.ggml.architectures.tensors import layer_needs, model_needs
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.builder import Builder
from kvalet.engine.ggml.linear import Operand
from kvalet.engine.ggml.rope import rotate
from kvalet.engine.ggml.weights import Weight, Weights

LayerWeights: TypeAlias = Mapping[str, Weight]


class Decoder:
    """Implements `kvalet.engine.ggml.model.Model`."""

    def __init__(self, description: ModelDescription, weights: Weights) -> None:
        """Raises ModelFileError where the file lacks what the description needs."""
        self.description = description
        self._weights = weights.load(model_needs(description))
        self._layers = [
            weights.load(layer_needs(description, index))
            for index in range(len(description.layers))
        ]

    def build(self, graph: Builder, layers: Sequence[int]) -> Tensor:
        x = graph.rows(self._weights["embeddings"].tensor, graph.tokens)
        for place, index in enumerate(layers):
            layer, weights = self.description.layers[index], self._layers[index]
            h = graph.norm(x, weights["mixer_norm"], layer.norm)
            mixed = self._attend(graph, place, layer.mixer, weights, h)
            if place == len(layers) - 1:
                # nothing below looks at other rows: only these are worth computing further
                mixed, x = graph.rows(mixed, graph.outputs), graph.rows(x, graph.outputs)
            x = graph.linear(graph.operand(mixed), weights["mixer_output"], added=x)
            h = graph.norm(x, weights["feed_forward_norm"], layer.norm)
            h = graph.gated(layer.feed_forward.activation, h, weights["gate"], weights["up"])
            x = graph.linear(h, weights["down"], added=x)
        h = graph.norm(x, self._weights["output_norm"], self.description.output_norm)
        return graph.linear(h, self._weights["output"])

    def rotate(self, context: Handle, rope: Rope, x: Tensor, positions: Tensor) -> Tensor:
        factors = None if rope.factors is None else self._weights[rope.factors].tensor
        return rotate(context, rope, factors, x, positions)

    def distinct_layers(self) -> list[int]:
        first_of_kind: dict[object, int] = {}
        for index, layer in enumerate(self.description.layers):
            types = tuple(weight.tensor.contents.type for weight in self._layers[index].values())
            first_of_kind.setdefault((layer, types), index)
        return list(first_of_kind.values())

    def _attend(
        self, graph: Builder, place: int, mixer: AttentionMixer, weights: LayerWeights, h: Operand
    ) -> Tensor:
        q, k, v = graph.linears(h, [weights[name] for name in ("query", "key", "value")])
        query = graph.split_heads(q, mixer.num_heads)
        query = self.rotate(graph.context, mixer.rope, query, graph.positions)
        key = graph.split_heads(k, mixer.num_kv_heads)
        key = self.rotate(graph.context, mixer.rope, key, graph.positions)
        return graph.attend(place, query, key, graph.split_heads(v, mixer.num_kv_heads))
