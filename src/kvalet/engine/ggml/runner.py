"""A page pool and the graphs that compute in it: runs batches of grants of one model."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from kvalet.engine.ggml.attention import PagedAttention
from kvalet.engine.ggml.batch import Batch, Limits
from kvalet.engine.ggml.graphs import Graphs
from kvalet.engine.ggml.loaded import LoadedModel
from kvalet.engine.ggml.pool import PagePool


class Runner:
    """Fill `batch`, run `graphs`, find the draws' logits in `graphs.logits`."""

    def __init__(
        self,
        loaded: LoadedModel,
        limits: Limits,
        poison: bool,
        layers: Sequence[int] | None = None,
    ) -> None:
        """Of the whole model, or as if it had `layers` only. Raises EngineFatal without memory."""
        model, library, backend = loaded.model, loaded.library, loaded.backend
        layers = range(model.kv_shape.num_layers) if layers is None else layers
        shape = replace(model.kv_shape, num_layers=len(layers))
        with ExitStack() as stack:
            self.pool = PagePool(backend, library, shape, limits.num_pages, poison)
            stack.enter_context(closing(self.pool))
            self.batch = Batch(limits)
            parameters = [model.attention[layer] for layer in layers]
            attention = PagedAttention(library, parameters, self.pool, self.batch)
            build = partial(model.build, layers=layers)
            granularity = loaded.weights.granularity
            self.graphs = Graphs(backend, build, attention, self.batch, granularity)
            stack.enter_context(closing(self.graphs))
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Safe to call twice."""
        self._resources.close()
