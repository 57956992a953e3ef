"""A page pool and a model that computes in it: runs the rows of grants, whoever wants their logits.

What stands behind it (backend, graphs, batches, attention) is nobody else's business.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import NamedTuple

from kvalet.core.plan import Draw, Grant, PageShift, SeqId
from kvalet.engine.ggml.attention import PagedAttention
from kvalet.engine.ggml.batch import Batch, Limits
from kvalet.engine.ggml.graphs import Graphs, Logits
from kvalet.engine.ggml.loaded import LoadedModel
from kvalet.engine.ggml.planes import lay_out
from kvalet.engine.ggml.pool import PagePool
from kvalet.engine.ggml.shift import KeyShift


class Ran(NamedTuple):
    """What came of rows. All of it is overwritten by the next run."""

    refused: Mapping[SeqId, str]  # grants that could not be run, and why
    draws: Sequence[tuple[SeqId, Draw]]  # of all others
    logits: Logits  # [draws, num_vocab]
    seconds: float  # inside the device's graph executor


class Runner:
    """Owns the pool's memory and what it takes to compute."""

    def __init__(
        self,
        loaded: LoadedModel,
        limits: Limits,
        poison: bool,
        layers: Sequence[int] | None = None,
    ) -> None:
        """Of the whole model, or as if it had `layers` only. Raises EngineFatal without memory."""
        model, library, backend = loaded.model, loaded.library, loaded.backend
        described = model.description.layers
        layers = range(len(described)) if layers is None else layers
        mixers = [described[layer].mixer for layer in layers]
        planes, places = lay_out(mixers)
        with ExitStack() as stack:
            self.pool = PagePool(backend, library, planes, limits.num_pages, poison)
            stack.enter_context(closing(self.pool))
            self._batch = Batch(limits)
            attention = PagedAttention(library, mixers, places, self.pool, self._batch)
            build = partial(model.build, layers=layers)
            granularity = loaded.weights.granularity
            self._graphs = Graphs(
                backend, build, attention, loaded.kernels, self._batch, granularity
            )
            stack.enter_context(closing(self._graphs))
            self._shift = KeyShift(backend, library, model.rotate, mixers, places)
            self._resources = stack.pop_all()

    @property
    def compute_bytes(self) -> int:
        return self._graphs.compute_bytes

    def check(self, grants: Sequence[Grant]) -> None:
        """Raises EngineError where they are more than a step takes."""
        self._batch.check(grants)

    def shift(self, shift: PageShift) -> None:
        """Raises EngineError, having changed nothing, for a page outside the pool."""
        self._shift.run(self.pool, shift)

    def run(self, grants: Sequence[Grant]) -> Ran:
        """Compute the rows of grants that have passed `check`. Raises EngineError where none of
        them could be computed."""
        batch = self._batch
        refused = batch.fill(grants)
        seconds = self._graphs.run() if batch.num_rows else 0.0
        return Ran(refused, batch.draws, self._graphs.logits[: len(batch.draws)], seconds)

    def close(self) -> None:
        """Safe to call twice."""
        self._resources.close()
