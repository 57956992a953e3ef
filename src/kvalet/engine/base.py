"""The seam between deciding and computing: what every engine offers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kvalet.core.plan import StepOutcome, StepPlan

# Of a step that computes: so long copies may go on beside it. On two cores that are both computing
# every copy is felt, but a smaller share keeps who is parked away for longer than it spares the
# others (docs/lab-log.md, "how fast the copier may go").
PACE_SHARE: Final = 0.12
PACE_DEBT: Final = 8  # steps after which a page is copied whatever the last one took
PACE_STEPS: Final = 4  # of these latest steps the shortest counts: after a long prompt come others


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself once, at load."""

    num_pages: int  # pool pages a plan may name: ids 0 .. num_pages - 1
    page_bytes: int  # all planes
    num_vocab: int
    max_step_tokens: int  # rows one execute takes
    fingerprint: bytes  # 32; root of the page names: model, KV type, builds, instruction set
    # for /props and the log
    report: Mapping[str, object] = field(default_factory=dict[str, object])


class Engine(Protocol):
    """Executes plans. Called from one thread; decides nothing and keeps no sequence state.

    A token drawn is a pure function of the tokens in the pages a grant names and of its draw
    (ADR 0003): not of the other grants, of the split into steps, or of which pages they are.
    """

    @property
    def info(self) -> EngineInfo: ...

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one step; see `plan.py` for its order. Never raises for what concerns single
        sequences or transfers (those are reported in the outcome); raises EngineFatal when it
        cannot go on. Does not wait for transfers: those that have ended since the last call are
        in the outcome, and calls with empty plans see the rest land."""
        ...

    def close(self) -> None:
        """Give memory back, once the page being copied has been; what is left of the transfers in
        flight is dropped. Safe to call twice."""
        ...
