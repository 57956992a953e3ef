"""Graphs by shape: built once per bucketed (rows, outputs), run many times.

All of them lie in one compute buffer, reserved at the largest shape. A graph's tensors keep the
addresses they got when it was built; that holds as long as the buffer does not move, so the cache
is emptied should it have to grow. Inputs are outside it: nothing else is ever written there.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ggml
import numpy as np

from kvalet.engine.ggml.attention import Attention
from kvalet.engine.ggml.backend import Backend, Context, Handle, Tensor, read, write
from kvalet.engine.ggml.batch import Batch, Int32Array
from kvalet.engine.ggml.builder import Builder
from kvalet.engine.ggml.linear import LinearKernels
from kvalet.errors import EngineFatal

Logits: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Build: TypeAlias = Callable[[Builder], Tensor]  # -> logits
Shape: TypeAlias = tuple[int, int]  # rows, outputs

MAX_GRAPHS: Final = 48
TENSORS_OF_LAYER: Final = 64  # more than any layer has; the first graph tells how many there are


def bucket(count: int, granularity: int, most: int) -> int:
    """The number of rows computed for `count`: 1-8, then multiples of 8 to 64, then of 32, rounded
    up to the granularity; at most `most`, rounded up to it."""
    step = 1 if count <= 8 else 8 if count <= 64 else 32
    return _round_up(min(_round_up(max(count, 1), step), most), granularity)


@dataclass(frozen=True, slots=True)
class Graph:
    context: Context
    handle: Handle
    inputs: tuple[Tensor, Tensor, Tensor]  # tokens, positions, outputs
    logits: Tensor  # f32 [num_vocab, outputs]


class Graphs:
    """Runs what a batch holds. `logits` [max_seqs, num_vocab] is overwritten by every run."""

    def __init__(
        self,
        backend: Backend,
        build: Build,
        attention: Attention,
        kernels: LinearKernels,
        batch: Batch,
        granularity: int,
    ) -> None:
        self._backend = backend
        self._build_model = build
        self._attention = attention
        self._kernels = kernels
        self._batch = batch
        self._granularity = granularity
        self._graphs: OrderedDict[Shape, Graph] = OrderedDict()
        self._num_nodes = TENSORS_OF_LAYER * (attention.num_layers + 1)
        self._tensor_bytes = self._num_nodes * ggml.ggml_tensor_overhead()
        self._inputs = tuple(backend.allocate(array.nbytes) for array in self._arrays)
        self._allocator: Handle | None = ggml.ggml_gallocr_new(backend.buffer_type)
        self.logits: Logits = np.empty((batch.limits.max_seqs, batch.limits.num_vocab), np.float32)
        self._reserve()

    def run(self) -> float:
        """Compute the batch; its draws' logits are in the first rows of `logits` afterwards.
        Returns the seconds inside ggml's executor. Raises EngineError."""
        shape = self._shape_of(self._batch.num_rows, len(self._batch.draws))
        graph = self._graph(shape)
        self._attention.take_step()
        for tensor, array in zip(graph.inputs, self._arrays, strict=True):
            write(tensor, array)
        seconds = self._backend.compute(graph.handle)
        read(graph.logits, self.logits[: len(self._batch.draws)])
        return seconds

    @property
    def compute_bytes(self) -> int:
        return int(ggml.ggml_gallocr_get_buffer_size(self._allocator, 0))

    def close(self) -> None:
        self._drop_all()
        if self._allocator is not None:
            ggml.ggml_gallocr_free(self._allocator)
            self._allocator = None
        for buffer in self._inputs:
            buffer.close()

    @property
    def _arrays(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        return self._batch.tokens, self._batch.positions, self._batch.outputs

    def _shape_of(self, num_rows: int, num_outputs: int) -> Shape:
        limits = self._batch.limits
        return (
            bucket(num_rows, self._granularity, limits.max_rows),
            bucket(num_outputs, self._granularity, limits.max_seqs),
        )

    def _graph(self, shape: Shape) -> Graph:
        graph = self._graphs.get(shape)
        if graph is None:
            graph = self._build(shape)
            self._place(graph)
            self._graphs[shape] = graph
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)[1].context.close()
        self._graphs.move_to_end(shape)
        return graph

    def _build(self, shape: Shape) -> Graph:
        overhead = ggml.ggml_graph_overhead_custom(self._num_nodes, False)
        context = Context(self._tensor_bytes + overhead)
        tokens, positions, outputs = (
            buffer.place(context.new(ggml.GGML_TYPE_I32, size), buffer.base)
            for buffer, size in zip(self._inputs, _input_sizes(shape), strict=True)
        )
        builder = Builder(
            context.handle, tokens, positions, outputs, self._attention, self._kernels
        )
        logits = self._build_model(builder)
        ggml.ggml_set_output(logits)
        handle = ggml.ggml_new_graph_custom(context.handle, self._num_nodes, False)
        ggml.ggml_build_forward_expand(handle, logits)
        return Graph(context, handle, (tokens, positions, outputs), logits)

    def _reserve(self) -> None:
        """Size the compute buffer, and later contexts, by the largest graph there can be."""
        limits = self._batch.limits
        largest = self._build(self._shape_of(limits.max_rows, limits.max_seqs))
        if not ggml.ggml_gallocr_reserve(self._allocator, largest.handle):
            raise EngineFatal("no memory for the compute buffer")
        overhead = ggml.ggml_graph_overhead_custom(self._num_nodes, False)
        self._tensor_bytes = largest.context.used_bytes - overhead
        self._num_nodes = ggml.ggml_graph_n_nodes(largest.handle)
        largest.context.close()

    def _place(self, graph: Graph) -> None:
        before = self.compute_bytes
        if not ggml.ggml_gallocr_alloc_graph(self._allocator, graph.handle):
            raise EngineFatal("no memory for the compute buffer")
        if self.compute_bytes != before:
            self._drop_all()

    def _drop_all(self) -> None:
        for graph in self._graphs.values():
            graph.context.close()
        self._graphs.clear()


def _input_sizes(shape: Shape) -> tuple[int, int, int]:
    rows, outputs = shape
    return rows, rows, outputs


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
