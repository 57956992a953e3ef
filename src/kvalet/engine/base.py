"""The seam between deciding and computing: what every engine offers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from kvalet.core.plan import SeqId, StepOutcome, StepPlan

# Of a step that computes: so long copies may go on beside it. On two cores that are both computing
# every copy is felt, but a smaller share keeps who is parked away for longer than it spares the
# others (docs/lab-log.md, "how fast the copier may go").
PACE_SHARE: Final = 0.12
PACE_DEBT: Final = 8  # steps after which a page is copied whatever the last one took
PACE_STEPS: Final = 4  # of these latest steps the shortest counts: after a long prompt come others


@dataclass(frozen=True, slots=True)
class Exactness:
    """What the exactness probe found, by the names of what it tried."""

    same: tuple[str, ...] = ()
    differ: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()  # not tried yet


@dataclass(frozen=True, slots=True)
class EngineReport:
    """For people: the log and /props. Nothing is decided by it but whether to serve at all."""

    device: str = ""
    threads: int = 1
    native: str = ""  # instruction set of the kernels
    pool_bytes: int = 0
    copies: Literal["asynchronous", "synchronous"] | None = None
    compute_bytes: int = 0
    linear_weights: Mapping[str, int] = field(default_factory=dict[str, int])  # by type
    repacked_bytes: int = 0
    column_granularity: int = 1  # what the columns of a multiplication are padded to multiples of
    exactness: Exactness = field(default_factory=Exactness)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself once, at load."""

    num_pages: int  # pool pages a plan may name: ids 0 .. num_pages - 1
    page_bytes: int  # all planes
    num_vocab: int
    max_step_tokens: int  # rows one execute takes
    fingerprint: bytes  # 32; root of the page names: model, KV type, builds, instruction set
    report: EngineReport = field(default_factory=EngineReport)


@dataclass(frozen=True, slots=True)
class DrawMask:
    """Which tokens one draw of a plan may give; a draw that has none may give any."""

    seq_id: SeqId
    index: int  # the draw's
    allowed: bytes  # a bit for each token of the vocabulary, the lowest of a byte first


class Engine(Protocol):
    """Executes plans. Called from one thread; decides nothing and keeps no sequence state.

    A token drawn is a pure function of the tokens in the pages a grant names, of its draw and of
    that one's mask (ADR 0003): not of the other grants, of the split into steps, or of which pages
    they are.
    """

    @property
    def info(self) -> EngineInfo: ...

    def execute(self, plan: StepPlan, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        """Run one step; see `plan.py` for its order. `masks` are taken when there is something to
        draw from, so they may be made while the rows are computed.

        Never raises for what concerns single sequences or transfers (those are reported in the
        outcome); raises EngineFatal when it cannot go on. Does not wait for transfers: those that
        have ended since the last call are in the outcome, and calls with empty plans see the rest
        land."""
        ...

    def close(self) -> None:
        """Give memory back, once the page being copied has been; what is left of the transfers in
        flight is dropped. Safe to call twice."""
        ...
