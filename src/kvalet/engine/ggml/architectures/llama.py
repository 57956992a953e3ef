"""The llama graph: Llama, Mistral, SmolLM2 and whatever else calls itself so.

Knows which tensors and metadata the architecture has and how they are put together; everything is
checked when the model is loaded, with the name of what is missing or unsupported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import ggml

from kvalet.engine import native
from kvalet.engine.ggml.attention import AttentionLayer
from kvalet.engine.ggml.backend import Tensor
from kvalet.engine.ggml.builder import Builder
from kvalet.engine.ggml.pool import KVShape
from kvalet.engine.ggml.rope import read_rope
from kvalet.engine.ggml.weights import Linear, Weights
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile

HEAD_DIMS: Final = range(16, native.MAX_HEAD_DIM + 1, 16)  # what the attention kernels take


@dataclass(frozen=True, slots=True)
class Dimensions:
    num_layers: int
    num_embd: int
    num_ff: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Tensor
    query: Linear
    key: Linear
    value: Linear
    attn_output: Linear
    ffn_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear

    @property
    def weights(self) -> Iterator[Tensor]:
        linears = (self.query, self.key, self.value, self.attn_output)
        return (layer.weight for layer in (*linears, self.gate, self.up, self.down))


class Llama:
    """A loaded model: builds its graph for any number of tokens."""

    def __init__(self, file: GGUFFile, weights: Weights) -> None:
        """Raises ModelFileError for what is missing, misshapen or unsupported."""
        _refuse_experts(file)
        dims = self._dims = _read_dimensions(file)
        self.num_vocab = _num_vocab(file)
        self.kv_shape = KVShape(dims.num_layers, dims.num_kv_heads, dims.head_dim)
        self.attention: Sequence[AttentionLayer] = _read_attention(file, dims)
        self._norm_eps = file.number("llama.attention.layer_norm_rms_epsilon")
        self.rope = read_rope(file, weights, ggml.GGML_ROPE_TYPE_NORMAL, dims.head_dim)
        self._embeddings = weights.table("token_embd.weight", dims.num_embd, self.num_vocab)
        self._layers = [_load_layer(weights, i, dims) for i in range(dims.num_layers)]
        self._output_norm = weights.vector("output_norm.weight", dims.num_embd)
        output = "output" if weights.has("output.weight") else "token_embd"
        self._output = weights.linear(output, dims.num_embd, self.num_vocab)

    def build(self, graph: Builder, layers: Sequence[int]) -> Tensor:
        """Logits [num_vocab, outputs] of the rows that `graph.outputs` names, as if the model had
        these layers only; the pool has them in this order."""
        x = graph.rows(self._embeddings, graph.tokens)
        for place, layer in enumerate(self._layers[index] for index in layers):
            attended = self._attend(graph, place, layer, x)
            if place == len(layers) - 1:
                # nothing below looks at other rows: only these are worth computing further
                attended, x = graph.rows(attended, graph.outputs), graph.rows(x, graph.outputs)
            x = graph.add(x, graph.linear(layer.attn_output, attended))
            x = graph.add(x, self._feed_forward(graph, layer, x))
        x = graph.rms_norm(x, self._output_norm, self._norm_eps)
        return graph.linear(self._output, x)

    def distinct_layers(self) -> list[int]:
        """One of every kind: layers of a kind have weights of the same types and shapes."""
        first_of_kind: dict[object, int] = {}
        for index, layer in enumerate(self._layers):
            kinds = (weight.contents.type for weight in layer.weights)
            first_of_kind.setdefault(tuple(kinds), index)
        return list(first_of_kind.values())

    def _attend(self, graph: Builder, place: int, layer: Layer, x: Tensor) -> Tensor:
        h = graph.rms_norm(x, layer.attn_norm, self._norm_eps)
        query = self._rotate(graph, graph.linear(layer.query, h), self._dims.num_heads)
        key = self._rotate(graph, graph.linear(layer.key, h), self._dims.num_kv_heads)
        return graph.attend(place, query, key, graph.linear(layer.value, h))

    def _rotate(self, graph: Builder, x: Tensor, num_heads: int) -> Tensor:
        heads = graph.split_heads(x, num_heads)
        return self.rope.apply(graph.context, heads, graph.positions)

    def _feed_forward(self, graph: Builder, layer: Layer, x: Tensor) -> Tensor:
        h = graph.rms_norm(x, layer.ffn_norm, self._norm_eps)
        gated = graph.swiglu(graph.linear(layer.gate, h), graph.linear(layer.up, h))
        return graph.linear(layer.down, gated)


def _refuse_experts(file: GGUFFile) -> None:
    if file.integer("llama.expert_count", 0):
        raise ModelFileError(f"{file.path}: mixture-of-experts llama models are not supported")


def _read_dimensions(file: GGUFFile) -> Dimensions:
    num_embd = file.integer("llama.embedding_length")
    num_heads = file.integer("llama.attention.head_count")
    num_kv_heads = file.integer("llama.attention.head_count_kv", num_heads)
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ModelFileError(
            f"{file.path}: {num_heads} heads cannot share {num_kv_heads} heads of keys and values"
        )
    return Dimensions(
        num_layers=_positive(file, "llama.block_count"),
        num_embd=num_embd,
        num_ff=_positive(file, "llama.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_read_head_dim(file, num_embd // num_heads),
    )


def _read_head_dim(file: GGUFFile, default: int) -> int:
    head_dim = file.integer("llama.attention.key_length", default)
    value_dim = file.integer("llama.attention.value_length", default)
    if head_dim != value_dim or head_dim not in HEAD_DIMS:
        raise ModelFileError(
            f"{file.path}: keys of {head_dim} and values of {value_dim} dimensions are not "
            f"supported (they must be the same multiple of {HEAD_DIMS.step}, up to {HEAD_DIMS[-1]})"
        )
    return head_dim


def _read_attention(file: GGUFFile, dims: Dimensions) -> Sequence[AttentionLayer]:
    scale = file.number("llama.attention.scale", 0.0) or dims.head_dim**-0.5
    window = file.integer("llama.attention.sliding_window", 0)
    return [AttentionLayer(dims.num_heads, scale, window)] * dims.num_layers


def _load_layer(weights: Weights, index: int, dims: Dimensions) -> Layer:
    prefix = f"blk.{index}"
    num_query, num_kv = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    return Layer(
        attn_norm=weights.vector(f"{prefix}.attn_norm.weight", dims.num_embd),
        query=weights.linear(f"{prefix}.attn_q", dims.num_embd, num_query),
        key=weights.linear(f"{prefix}.attn_k", dims.num_embd, num_kv),
        value=weights.linear(f"{prefix}.attn_v", dims.num_embd, num_kv),
        attn_output=weights.linear(f"{prefix}.attn_output", num_query, dims.num_embd),
        ffn_norm=weights.vector(f"{prefix}.ffn_norm.weight", dims.num_embd),
        gate=weights.linear(f"{prefix}.ffn_gate", dims.num_embd, dims.num_ff),
        up=weights.linear(f"{prefix}.ffn_up", dims.num_embd, dims.num_ff),
        down=weights.linear(f"{prefix}.ffn_down", dims.num_ff, dims.num_embd),
    )


def _num_vocab(file: GGUFFile) -> int:
    embeddings = file.tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ModelFileError(f"{file.path}: the tensor 'token_embd.weight' is not a matrix")
    return embeddings.shape[1]


def _positive(file: GGUFFile, key: str) -> int:
    value = file.integer(key)
    if value < 1:
        raise ModelFileError(f"{file.path}: the metadata key {key!r} is {value}")
    return value
