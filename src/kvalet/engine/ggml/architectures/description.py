"""What a model is, as data: one record for each of its layers and one for the whole.

An architecture reads a file's keys into these records, and `decoder.py` builds the graph that they
describe; what no record says cannot differ between architectures. They hold numbers and names of
tensors, never weights, so they can be had of a file without a device.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Pairs(Enum):
    """Which dimensions of a head are rotated together."""

    NEIGHBOURS = "neighbours"  # 2i and 2i + 1
    HALVES = "halves"  # i and i + half


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of a layer. What its numbers do is ggml's `rope_ext`."""

    pairs: Pairs
    num_dims: int  # of each head, from its first; the rest is not rotated
    freq_base: float
    freq_scale: float  # positions are multiplied by it
    num_ctx_orig: int  # the context before scaling (yarn)
    ext_factor: float  # 0: no yarn
    attn_factor: float  # multiplies the rotated; ggml multiplies yarn's own correction to it
    beta_fast: float
    beta_slow: float
    factors: str | None  # the tensor that divides the frequencies (Llama 3), one value a pair


@dataclass(frozen=True, slots=True)
class Norm:
    """Divided by the root of the mean square, then times a weight."""

    eps: float


@dataclass(frozen=True, slots=True)
class AttentionMixer:
    """Rows look at the cells of their sequence."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # multiplies q.k
    window: int  # cells a row sees, its own included; 0: all
    rope: Rope


Mixer: TypeAlias = AttentionMixer  # how a token learns of those before it


class Activation(Enum):
    SWIGLU = "swiglu"  # silu(gate) * up


@dataclass(frozen=True, slots=True)
class FeedForward:
    size: int
    activation: Activation


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """x += mixer(norm(x)); x += feed_forward(norm(x))"""

    norm: Norm
    mixer: Mixer
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Embeddings, the layers in order, a norm, the output layer."""

    num_vocab: int
    num_embd: int
    layers: tuple[LayerDescription, ...]
    output_norm: Norm
    is_tied: bool  # the output layer multiplies by the table of embeddings
