"""The real engine, with everything that passes through it kept, and faults put in on request.

What fails or is left out is decided per item by the fake engine's `Faults`, so a test injects the
same fault into either engine. `tamper` may change a plan on its way in.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from kvalet.core.plan import (
    Direction,
    Fault,
    Grant,
    HostId,
    Phase,
    Sampled,
    SeqId,
    StepOutcome,
    StepPlan,
    Transfer,
    TransferId,
    pages_for,
)
from kvalet.engine.base import DrawMask, EngineInfo
from kvalet.engine.fake import Faults
from kvalet.engine.ggml.engine import GgmlEngine


@dataclass
class WatchedEngine:
    inner: GgmlEngine
    faults: Faults = field(default_factory=Faults)
    tamper: Callable[[StepPlan], StepPlan] = lambda plan: plan
    plans: list[StepPlan] = field(default_factory=list[StepPlan])
    drawn: dict[SeqId, list[Sampled]] = field(default_factory=dict[SeqId, list[Sampled]])
    last_index: dict[SeqId, int] = field(default_factory=dict[SeqId, int])
    final_kv: dict[SeqId, bytes] = field(default_factory=dict[SeqId, bytes])
    moved: Counter[Direction] = field(default_factory=Counter[Direction])  # sequences' pages
    num_replayed: int = 0  # tokens computed at places that their sequence had computed before
    _computed: Counter[SeqId] = field(default_factory=Counter[SeqId])  # most tokens ever
    _copies: dict[TransferId, Transfer] = field(default_factory=dict[TransferId, Transfer])

    @property
    def info(self) -> EngineInfo:
        return self.inner.info

    def execute(self, plan: StepPlan, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        self.plans.append(plan)
        error = self.faults.execute(plan)
        if error is not None:
            raise error
        broken = self._broken_copies(plan)
        not_run = tuple(grant.seq_id for grant in plan.grants if self.faults.no_room(grant))
        tampered = self.tamper(plan)
        passed = replace(
            tampered,
            grants=tuple(g for g in tampered.grants if g.seq_id not in not_run),
            transfers=tuple(t for t in plan.transfers if t.transfer_id not in broken),
        )
        outcome = self.inner.execute(passed, masks)
        failed = dict(outcome.failed) | self._failures(passed)
        sampled = {s: drawn for s, drawn in outcome.sampled.items() if s not in failed}
        self._keep(passed, sampled)
        self._count_copies(plan, outcome)
        self._count_replayed([g for g in plan.grants if g.seq_id not in {*not_run, *failed}])
        return replace(
            outcome,
            sampled=sampled,
            failed=failed,
            not_run=not_run,
            failed_transfers={**outcome.failed_transfers, **broken},
        )

    def close(self) -> None:
        self.inner.close()

    def flip(self, host: HostId, offset: int) -> None:
        """Turn over seven bits of a byte of a page in the host store's RAM."""
        ctypes.c_uint8.from_address(self.inner._hosts.read(host) + offset).value ^= 0x7F

    @property
    def peak_pages(self) -> int:
        """Most pages that took part in one step."""
        return max(len({page for g in plan.grants for page in g.pages}) for plan in self.plans)

    def _broken_copies(self, plan: StepPlan) -> dict[TransferId, Fault]:
        copies = [t for t in plan.transfers if isinstance(t, Transfer) and t.moves]
        faults = {t.transfer_id: self.faults.transfer(t) for t in copies}
        return {transfer: Fault(fault) for transfer, fault in faults.items() if fault is not None}

    def _failures(self, plan: StepPlan) -> dict[SeqId, str]:
        faults = {grant.seq_id: self.faults.compute(grant) for grant in plan.grants}
        return {seq_id: fault for seq_id, fault in faults.items() if fault is not None}

    def _keep(self, plan: StepPlan, sampled: dict[SeqId, tuple[Sampled, ...]]) -> None:
        for grant in plan.grants:
            if grant.seq_id in sampled and grant.draws:
                self.drawn.setdefault(grant.seq_id, []).extend(sampled[grant.seq_id])
                if grant.draws[-1].index == self.last_index.get(grant.seq_id):
                    self.final_kv[grant.seq_id] = self._kv(grant)

    def _count_copies(self, plan: StepPlan, outcome: StepOutcome) -> None:
        self._copies |= {t.transfer_id: t for t in plan.transfers if isinstance(t, Transfer)}
        for transfer_id in outcome.landed:
            copy = self._copies.get(transfer_id)
            if copy is not None and copy.seq_id is not None:
                self.moved[copy.direction] += len(copy.moves)

    def _count_replayed(self, computed: list[Grant]) -> None:
        for grant in computed:
            end, before = grant.start + len(grant.tokens), self._computed[grant.seq_id]
            if grant.phase is Phase.REPLAY:
                self.num_replayed += max(0, min(end, before) - grant.start)
            self._computed[grant.seq_id] = max(end, before)

    def _kv(self, grant: Grant) -> bytes:
        """Keys and values of all its cells, in position order."""
        end = grant.start + len(grant.tokens)
        counts = [min(32, end - 32 * index) for index in range(pages_for(end))]
        pool = self.inner._runner.pool
        return b"".join(
            pool.cells(page, count) for page, count in zip(grant.pages, counts, strict=False)
        )
