"""The engine over ggml: a step plan in, its outcome out.

Ties together pool, graphs and sampling, in the order a plan says. Keeps nothing about a sequence
between steps but the bytes of its pages.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from kvalet.core.plan import Grant, Sampled, SeqId, StepOutcome, StepPlan
from kvalet.engine.base import PACE_STEPS, DrawMask, EngineInfo, EngineReport, Exactness
from kvalet.engine.ggml.batch import Limits
from kvalet.engine.ggml.cache import FactCache
from kvalet.engine.ggml.fingerprint import fingerprint
from kvalet.engine.ggml.loaded import LoadedModel
from kvalet.engine.ggml.probe import prove
from kvalet.engine.ggml.runner import Ran, Runner
from kvalet.engine.ggml.sampling import sample
from kvalet.engine.host.copier import Copier, Forget
from kvalet.engine.host.folder import OwnFolder
from kvalet.engine.host.moves import Moves
from kvalet.engine.host.places import HostPlaces, PageFiles
from kvalet.errors import EngineError, EngineFatal
from kvalet.model.gguf import GGUFFile


@dataclass(slots=True)
class Computed:
    """What became of a step's rows."""

    compute_s: float = 0.0
    sampled: dict[SeqId, tuple[Sampled, ...]] = field(
        default_factory=dict[SeqId, tuple[Sampled, ...]]
    )
    failed: dict[SeqId, str] = field(default_factory=dict[SeqId, str])


class GgmlEngine:
    """Implements `kvalet.engine.base.Engine`. Made by `load_engine`."""

    def __init__(
        self,
        loaded: LoadedModel,
        limits: Limits,
        poison: bool,
        root: bytes,
        exactness: Exactness,
        folder: OwnFolder | None,
        async_copies: bool,
    ) -> None:
        """Takes over `loaded` and `folder`, and closes them. `root` becomes the fingerprint."""
        self._loaded = loaded
        self._runner = Runner(loaded, limits, poison)
        pool = self._runner.pool
        files = PageFiles(folder, root, pool.page_bytes) if folder else None
        self._hosts = HostPlaces(pool.page_bytes, files)
        self._copier = Copier(Moves(pool, self._hosts, root), asynchronous=async_copies)
        self._recent_s: deque[float] = deque(maxlen=PACE_STEPS)
        self._info = EngineInfo(
            num_pages=limits.num_pages,
            page_bytes=pool.page_bytes,
            num_vocab=limits.num_vocab,
            max_step_tokens=limits.max_rows,
            fingerprint=root,
            report=self._report(exactness),
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    def execute(self, plan: StepPlan, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        """Run one step. Raises EngineError, having computed nothing, for a plan that does not fit
        the engine's limits, or frees or copies a page outside the pool."""
        self._copier.pace(min(self._recent_s, default=0.0) if plan.grants else None)
        if plan.host_freed:
            self._copier.start([Forget(plan.host_freed)])  # also if the plan is refused
        self._runner.check(plan.grants)
        self._runner.pool.forget(plan.freed)
        self._runner.pool.copy(plan.page_copies)
        for shift in plan.page_shifts:
            self._runner.shift(shift)
        computed = self._compute(plan.grants, masks)
        self._copier.start(plan.transfers)
        copied = self._copier.take()
        return StepOutcome(
            sampled=computed.sampled,
            failed=computed.failed,
            landed=tuple(copied.landed),
            failed_transfers=copied.failed,
            compute_s=computed.compute_s,
            copy_s=copied.busy_s,
        )

    def close(self) -> None:
        self._copier.close()
        self._hosts.close()
        self._runner.close()
        self._loaded.close()

    def _compute(self, grants: Sequence[Grant], masks: Iterable[DrawMask]) -> Computed:
        computed = Computed()
        if not grants:
            return computed
        try:
            ran = self._runner.run(grants)
        except EngineFatal:
            raise
        except EngineError as error:
            computed.failed = {grant.seq_id: str(error) for grant in grants}
            return computed
        computed.failed.update(ran.refused)
        if ran.seconds:
            computed.compute_s = ran.seconds
            self._recent_s.append(ran.seconds)
        self._draw(ran, {(mask.seq_id, mask.index): mask.allowed for mask in masks}, computed)
        return computed

    def _draw(self, ran: Ran, masks: Mapping[tuple[SeqId, int], bytes], computed: Computed) -> None:
        for logits, (seq_id, draw) in zip(ran.logits, ran.draws, strict=True):
            if seq_id in computed.failed:
                continue
            try:
                allowed = masks.get((seq_id, draw.index))
                drawn = sample(self._loaded.library, logits, draw, allowed)
            except EngineError as error:
                computed.failed[seq_id] = str(error)
                computed.sampled.pop(seq_id, None)
            else:
                computed.sampled[seq_id] = (*computed.sampled.get(seq_id, ()), drawn)

    def _report(self, exactness: Exactness) -> EngineReport:
        loaded, pool = self._loaded, self._runner.pool
        return EngineReport(
            device=loaded.backend.description,
            threads=loaded.backend.threads,
            native=loaded.library.isa,
            pool_bytes=pool.num_pages * pool.page_bytes,
            copies="asynchronous" if self._copier.is_asynchronous else "synchronous",
            compute_bytes=self._runner.compute_bytes,
            linear_weights=loaded.weights.kinds,
            repacked_bytes=loaded.weights.copied_bytes,
            column_granularity=loaded.weights.granularity,
            exactness=exactness,
        )


def load_engine(
    file: GGUFFile,
    *,
    num_pages: int,
    threads: int,
    max_step_tokens: int = 512,
    max_seqs: int = 64,
    poison: bool = False,
    probe_s: float = 0.0,
    cache_dir: Path | None = None,
    async_copies: bool = True,
    disk_dir: Path | None = None,
    own_linear: bool = True,
) -> GgmlEngine:
    """An engine with the model of a file, which it takes over and closes, and a pool of `num_pages`
    pages. A step takes at most `max_step_tokens` rows of `max_seqs` sequences; `poison` fills
    unused pages with NaN; `probe_s` is how long the exactness probe may take; `cache_dir` keeps
    what is found out about the file. `async_copies`: transfers run beside the steps that follow,
    else in their own; `disk_dir`: the host store's disk tier is a folder in this one; `own_linear`:
    our kernels multiply by the weights whose types they have, not ggml's.

    Raises ModelFileError for the file, ConfigError for `disk_dir`, EngineFatal when memory does not
    suffice.
    """
    with ExitStack() as stack:
        stack.enter_context(file)
        folder = stack.enter_context(closing(OwnFolder(disk_dir))) if disk_dir else None
        loaded = stack.enter_context(closing(LoadedModel(file, threads, own_linear=own_linear)))
        num_vocab = loaded.model.description.num_vocab
        limits = Limits(num_vocab, num_pages, max_step_tokens, max_seqs)
        cache = FactCache(cache_dir)
        root = fingerprint(file, loaded.library, loaded.weights.kinds)
        exactness = prove(loaded, limits, probe_s, cache, root.hex())
        engine = GgmlEngine(loaded, limits, poison, root, exactness, folder, async_copies)
        stack.pop_all()
        return engine
