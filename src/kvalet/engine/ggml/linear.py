"""Our linear layers as nodes of a graph, and what comes before them: norms and gates, quantised.

The structures that nodes read are part of every graph by their address: they are made once for a
layer, and stay while the model does. Shapes are ggml's: the fastest dimension first, tokens last.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import ggml

from kvalet.engine import native
from kvalet.engine.ggml.backend import Handle, Tensor
from kvalet.engine.ggml.weights import Weight

ALL_THREADS: Final = -1  # ggml's GGML_N_TASKS_MAX
FLOATS: Final = frozenset({ggml.GGML_TYPE_F32, ggml.GGML_TYPE_F16, ggml.GGML_TYPE_BF16})
F32_BYTES: Final = 4


def node(
    context: Handle,
    kind: int,
    shape: tuple[int, int],
    sources: Sequence[Tensor],
    kernel: object,
    userdata: int,
) -> Tensor:
    """A tensor of `shape` that a kernel of ours computes from `sources`, on all threads."""
    arguments = (ctypes.POINTER(ggml.ggml_tensor) * len(sources))(*sources)
    return ggml.ggml_custom_4d(
        context, kind, *shape, 1, 1, arguments, len(sources), kernel, ALL_THREADS, userdata
    )


@dataclass(slots=True)
class Operand:
    """What goes into linear layers, as floats [num_in, width] or as quantised columns: whichever
    their kernels read, made when one asks for it."""

    make_floats: Callable[[], Tensor]
    make_columns: Callable[[], Tensor]
    _floats: Tensor | None = None
    _columns: Tensor | None = None

    @property
    def floats(self) -> Tensor:
        if self._floats is None:
            self._floats = self.make_floats()
        return self._floats

    @property
    def columns(self) -> Tensor:
        if self._columns is None:
            self._columns = self.make_columns()
        return self._columns


@dataclass(slots=True)
class LinearKernels:
    """The nodes of one model."""

    library: native.NativeLibrary
    _layers: dict[tuple[int, ...], native.Layers] = field(
        default_factory=dict[tuple[int, ...], native.Layers]
    )  # by the addresses of their weights
    _inputs: dict[tuple[int, float, int], native.Input] = field(
        default_factory=dict[tuple[int, float, int], native.Input]
    )

    def product(
        self, context: Handle, x: Operand, packed: Sequence[native.Linear], added: Tensor | None
    ) -> Tensor:
        """Of packed weights that read the same of `x`. -> f32 [num_out of all, width]"""
        source = x.floats if packed[0].type in FLOATS else x.columns
        shape = (sum(layer.num_out for layer in packed), source.contents.ne[1])
        sources = (source,) if added is None else (source, added)
        userdata = ctypes.addressof(self._layers_of(packed))
        return node(context, ggml.GGML_TYPE_F32, shape, sources, self.library.linear, userdata)

    def quantised(self, context: Handle, x: Tensor) -> Tensor:
        return self._columns(context, x, x.contents.ne[0], self.library.quantise)

    def normed(self, context: Handle, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Of x / rms(x) * weight"""
        data = weight.contents.data
        return self._columns(context, x, x.contents.ne[0], self.library.norm, data, eps)

    def swiglu(self, context: Handle, gate_up: Tensor) -> Tensor:
        """Of silu(gate) * up, gate before up."""
        return self._columns(context, gate_up, gate_up.contents.ne[0] // 2, self.library.swiglu)

    def _columns(
        self,
        context: Handle,
        x: Tensor,
        num_in: int,
        kernel: object,
        weight: int = 0,
        eps: float = 0.0,
    ) -> Tensor:
        key = (weight, eps, num_in)
        structure = self._inputs.setdefault(key, native.Input(weight, eps, num_in))
        shape = (self.library.column_bytes(num_in), x.contents.ne[1])
        userdata = ctypes.addressof(structure)
        return node(context, ggml.GGML_TYPE_I8, shape, (x,), kernel, userdata)

    def _layers_of(self, packed: Sequence[native.Linear]) -> native.Layers:
        key = tuple(layer.weights for layer in packed)
        if key not in self._layers:
            array = (native.Linear * len(packed))(*packed)
            self._layers[key] = native.Layers(array, len(packed))
        return self._layers[key]


def together(weights: Sequence[Weight]) -> list[native.Linear] | None:
    """The packed weights, if all of them can be computed in one node."""
    packed = [weight.packed for weight in weights if weight.packed is not None]
    kinds = {layer.type in FLOATS for layer in packed}
    return packed if len(packed) == len(weights) and len(kinds) == 1 else None
