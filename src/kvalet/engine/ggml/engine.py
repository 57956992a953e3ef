"""The engine over ggml: a step plan in, its outcome out.

Ties together weights, pool, graphs and sampling, in the order a plan says. Keeps nothing about a
sequence between steps but the bytes of its pages.
"""

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from kvalet.core.plan import Sampled, SeqId, StepOutcome, StepPlan, Transfer, TransferId
from kvalet.engine import native
from kvalet.engine.base import EngineInfo
from kvalet.engine.ggml.architectures import load_architecture
from kvalet.engine.ggml.attention import PagedAttention
from kvalet.engine.ggml.backend import Backend
from kvalet.engine.ggml.batch import Batch, Limits
from kvalet.engine.ggml.fingerprint import fingerprint
from kvalet.engine.ggml.graphs import Graphs
from kvalet.engine.ggml.pool import HostArena, PagePool
from kvalet.engine.ggml.sampling import sample
from kvalet.engine.ggml.weights import Weights
from kvalet.errors import EngineError, EngineFatal
from kvalet.model.gguf import GGUFFile


@dataclass(slots=True)
class Computed:
    """What became of a step's rows."""

    compute_s: float = 0.0
    sampled: dict[SeqId, Sampled] = field(default_factory=dict[SeqId, Sampled])
    failed: dict[SeqId, str] = field(default_factory=dict[SeqId, str])


class GgmlEngine:
    """Implements `kvalet.engine.base.Engine`. Made by `load_engine`."""

    def __init__(
        self,
        info: EngineInfo,
        library: native.NativeLibrary,
        pool: PagePool,
        batch: Batch,
        graphs: Graphs,
        resources: ExitStack,
    ) -> None:
        """Takes over `resources`, which close what the engine is made of."""
        self._info = info
        self._library = library
        self._pool = pool
        self._host = HostArena(pool, library)
        self._batch = batch
        self._graphs = graphs
        self._resources = resources

    @property
    def info(self) -> EngineInfo:
        return self._info

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one step. Raises EngineError, having changed nothing, for a plan that does not fit
        the engine's limits or names a page outside the pool in its page copies."""
        refused = self._batch.fill(plan.grants)
        self._pool.forget(plan.freed)
        self._pool.copy(plan.page_copies)
        computed = self._compute()
        landed, failed_transfers = self._transfer(plan.transfers)
        return StepOutcome(
            sampled=computed.sampled,
            failed={**refused, **computed.failed},
            landed=landed,
            failed_transfers=failed_transfers,
            compute_s=computed.compute_s,
        )

    def close(self) -> None:
        self._host.close()
        self._resources.close()

    def _compute(self) -> Computed:
        computed = Computed()
        if not self._batch.grants:
            return computed
        try:
            computed.compute_s = self._graphs.run()
        except EngineFatal:
            raise
        except EngineError as error:
            computed.failed = {grant.seq_id: str(error) for grant in self._batch.grants}
            return computed
        self._draw(computed)
        return computed

    def _draw(self, computed: Computed) -> None:
        for logits, grant in zip(self._graphs.logits, self._batch.draws, strict=False):
            if grant.draw is None:
                continue
            try:
                computed.sampled[grant.seq_id] = sample(self._library, logits, grant.draw)
            except EngineError as error:
                computed.failed[grant.seq_id] = str(error)

    def _transfer(
        self, transfers: tuple[Transfer, ...]
    ) -> tuple[tuple[TransferId, ...], dict[TransferId, str]]:
        landed: list[TransferId] = []
        failed: dict[TransferId, str] = {}
        for transfer in transfers:
            try:
                self._host.run(transfer)
                landed.append(transfer.transfer_id)
            except EngineError as error:
                failed[transfer.transfer_id] = str(error)
        return tuple(landed), failed


def load_engine(
    model_path: str | Path,
    *,
    num_pages: int,
    threads: int,
    max_step_tokens: int = 512,
    max_seqs: int = 64,
    poison: bool = False,
) -> GgmlEngine:
    """An engine with the model of a GGUF file and a pool of `num_pages` pages. A step takes at most
    `max_step_tokens` rows of `max_seqs` sequences; `poison` fills unused pages with NaN.

    Raises ModelFileError for the file, EngineFatal when memory does not suffice.
    """
    with ExitStack() as stack:
        file = stack.enter_context(GGUFFile.open(model_path))
        backend = stack.enter_context(Backend(threads))
        library = native.load()
        weights = stack.enter_context(closing(Weights(file, backend)))
        model = load_architecture(file, weights)
        pool = PagePool(backend, library, model.kv_shape, num_pages, poison)
        stack.enter_context(closing(pool))
        batch = Batch(Limits(model.num_vocab, num_pages, max_step_tokens, max_seqs))
        attention = PagedAttention(library, model.attention, pool, batch)
        graphs = Graphs(backend, model, attention, batch, weights.granularity)
        stack.enter_context(closing(graphs))
        if weights.repacked_bytes:
            file.drop_resident()
        info = EngineInfo(
            num_pages=num_pages,
            page_bytes=pool.page_bytes,
            num_vocab=model.num_vocab,
            max_step_tokens=max_step_tokens,
            fingerprint=fingerprint(file, library),
            report={
                "device": backend.description,
                "threads": threads,
                "native": library.isa,
                "pool_bytes": num_pages * pool.page_bytes,
                "compute_bytes": graphs.compute_bytes,
                **weights.report(),
            },
        )
        return GgmlEngine(info, library, pool, batch, graphs, stack.pop_all())
