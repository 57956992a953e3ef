"""The tensors a description needs, with their shapes: one table for all who load, check or list
them.

Keys are what `decoder.py` calls a tensor; a file may have it under any name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from kvalet.engine.ggml.architectures.description import (
    AttentionMixer,
    FeedForward,
    LayerDescription,
    ModelDescription,
)
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile, TensorInfo


class Use(Enum):
    ROWS = "rows"  # a matrix whose rows are looked up
    LINEAR = "linear"  # a matrix to multiply by; a bias is added where the file has one
    VECTOR = "vector"  # f32: norms, biases, factors


@dataclass(frozen=True, slots=True)
class Need:
    """The tensor `name`.`part` of a file."""

    name: str
    use: Use
    shape: tuple[int, ...]  # in ggml's order: of a linear layer what goes in, then what comes out
    part: str = "weight"

    @property
    def tensor_name(self) -> str:
        return f"{self.name}.{self.part}"

    @property
    def bias(self) -> "Need":
        """That of a linear layer."""
        return Need(self.name, Use.VECTOR, self.shape[1:], "bias")


Needs: TypeAlias = Mapping[str, Need]


def model_needs(model: ModelDescription) -> Needs:
    """What the model needs outside its layers. Factors of ropes have their own names as keys."""
    matrix = (model.num_embd, model.num_vocab)
    factors = {
        rope.factors: Need(rope.factors, Use.VECTOR, (rope.num_dims // 2,))
        for rope in (layer.mixer.rope for layer in model.layers)
        if rope.factors is not None
    }
    return {
        "embeddings": Need("token_embd", Use.ROWS, matrix),
        "output_norm": Need("output_norm", Use.VECTOR, (model.num_embd,)),
        "output": Need("token_embd" if model.is_tied else "output", Use.LINEAR, matrix),
        **factors,
    }


def layer_needs(model: ModelDescription, index: int) -> Needs:
    """What the layer needs that is `index` in the model."""
    needs = _needs_of_layer(model.layers[index], model.num_embd)
    return {key: replace(need, name=f"blk.{index}.{need.name}") for key, need in needs.items()}


def find(file: GGUFFile, need: Need) -> TensorInfo:
    """Raises ModelFileError where the file lacks what is needed or has it in another shape."""
    name = need.tensor_name
    info = file.tensors.get(name)
    if info is None:
        raise ModelFileError(f"{file.path}: the tensor {name!r} is missing")
    if info.shape != need.shape:
        raise ModelFileError(
            f"{file.path}: tensor {name!r} has the shape {info.shape}, expected {need.shape}"
        )
    if need.use is Use.VECTOR and info.type_name != "f32":
        raise ModelFileError(f"{file.path}: tensor {name!r} is not f32")
    return info


def _needs_of_layer(layer: LayerDescription, num_embd: int) -> Needs:
    return {
        "mixer_norm": Need("attn_norm", Use.VECTOR, (num_embd,)),
        **_needs_of_attention(layer.mixer, num_embd),
        "feed_forward_norm": Need("ffn_norm", Use.VECTOR, (num_embd,)),
        **_needs_of_feed_forward(layer.feed_forward, num_embd),
    }


def _needs_of_attention(mixer: AttentionMixer, num_embd: int) -> Needs:
    num_query, num_kv = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    return {
        "query": Need("attn_q", Use.LINEAR, (num_embd, num_query)),
        "key": Need("attn_k", Use.LINEAR, (num_embd, num_kv)),
        "value": Need("attn_v", Use.LINEAR, (num_embd, num_kv)),
        "mixer_output": Need("attn_output", Use.LINEAR, (num_query, num_embd)),
    }


def _needs_of_feed_forward(feed_forward: FeedForward, num_embd: int) -> Needs:
    size = feed_forward.size
    return {
        "gate": Need("ffn_gate", Use.LINEAR, (num_embd, size)),
        "up": Need("ffn_up", Use.LINEAR, (num_embd, size)),
        "down": Need("ffn_down", Use.LINEAR, (size, num_embd)),
    }
