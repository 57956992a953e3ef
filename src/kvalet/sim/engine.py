"""An engine that computes nothing: it lets virtual time pass as a cost model says.

It alone knows how long each answer really is. The scheduler sees what it sees of a model: that a
sequence ends when it ends.
"""

from collections import deque
from collections.abc import Iterable

from kvalet.core.plan import FinishReason, Sampled, SeqId, StepOutcome, StepPlan
from kvalet.core.work import work_of
from kvalet.engine.base import PACE_STEPS, DrawMask, EngineInfo
from kvalet.sim.copier import VirtualCopier
from kvalet.sim.costs import CostModel

POLL_S = 0.001  # what a step without work takes: the loop's look at copies in flight
DRAWN = Sampled(token=0)


class CostEngine:
    """An Engine. `now`: seconds of virtual time."""

    def __init__(self, costs: CostModel, info: EngineInfo, *, asynchronous: bool = True) -> None:
        """`asynchronous`: transfers run beside the steps that follow, else in their own."""
        self.now = 0.0
        self._costs = costs
        self._info = info
        self._copier = VirtualCopier(costs)
        self._is_asynchronous = asynchronous
        self._recent_s: deque[float] = deque(maxlen=PACE_STEPS)
        self._num_outputs: dict[SeqId, int] = {}

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def is_copying(self) -> bool:
        return self._copier.is_busy

    def expect(self, seq_id: SeqId, num_output: int) -> None:
        """The answer of a sequence ends with its token number `num_output`."""
        self._num_outputs[seq_id] = num_output

    def execute(self, plan: StepPlan, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        busy_s = self._copier.busy_s
        self._copier.advance(self.now)  # what was copied since the last step, at its pace
        self._copier.pace(self.now, min(self._recent_s, default=0.0) if plan.grants else None)
        compute_s = self._compute_s(plan)
        self._pass(compute_s or POLL_S)
        self._copier.start(plan.transfers, self.now)
        if self._is_asynchronous:
            self._copier.advance(self.now)  # fences behind nothing land at once
        else:
            self.now = self._copier.finish(self.now)
        draws = [grant for grant in plan.grants if grant.draws]
        if plan.grants:
            self.now += self._costs.outside_s(len(plan.grants))
        return StepOutcome(
            sampled={grant.seq_id: (DRAWN,) * len(grant.draws) for grant in draws},
            finished={
                grant.seq_id: FinishReason.EOS
                for grant in draws
                if grant.draws[-1].index + 1 >= self._num_outputs[grant.seq_id]
            },
            landed=self._copier.take_landed(),
            compute_s=compute_s,
            copy_s=self._copier.busy_s - busy_s,
        )

    def close(self) -> None:
        pass

    def _compute_s(self, plan: StepPlan) -> float:
        """With what the copies beside it add."""
        if not plan.grants:
            return 0.0
        busy_s = self._copier.busy_s
        alone_s = self._costs.compute_s(work_of(plan))
        self._copier.advance(self.now + alone_s)
        compute_s = alone_s + self._costs.beside_share * (self._copier.busy_s - busy_s)
        self._recent_s.append(compute_s)
        return compute_s

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self._copier.advance(self.now)
