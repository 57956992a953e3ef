"""What the scheduler tells the engine, and what the engine answers.

A plan is data: `scheduler.plan(now) -> StepPlan`, `engine.execute(plan) -> StepOutcome`,
`scheduler.commit(plan, outcome)`. The engine keeps nothing about a sequence between steps but the
bytes of its pages, so whatever it needs to know is here.

A step happens in this order: freed pages and places are forgotten, pages are copied before they
are written, shifted keys are rotated, token rows are computed and their last rows drawn, transfers
are started. Transfers run beside the steps that follow and land in the order in which they were
started, those with state files whenever they are done; of an engine that copies synchronously all
land in their own step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType, TypeAlias

from kvalet.core.request import Adapter, Input, SamplingParams

SeqId = NewType("SeqId", int)
SlotId = NewType("SlotId", int)
PageId = NewType("PageId", int)  # a row of the pool
TransferId = NewType("TransferId", int)

PAGE_CELLS = 32


class StateId(NamedTuple):
    """A row of the states: what a sequence's recurrent layers remember, one fixed size each."""

    row: int


class Tier(Enum):
    """Where the host store keeps pages."""

    RAM = "ram"
    DISK = "disk"


class HostId(NamedTuple):
    """A page-sized place of the host store."""

    place: int
    tier: Tier = Tier.RAM


def pages_for(num_cells: int) -> int:
    """Pages that cover `num_cells` cells."""
    return -(-num_cells // PAGE_CELLS)


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to sample. Its random number is keyed by (seed, prompt index, choice, `index`)."""

    params: SamplingParams
    index: int  # 0 for the first token after the prompt
    recent: tuple[int, ...] = ()  # what the penalties look at, oldest first; empty without them


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy before write: all layers of page `src` to page `dst`."""

    src: PageId
    dst: PageId


@dataclass(frozen=True, slots=True)
class StateCopy:
    """The whole state in row `src` to row `dst`."""

    src: StateId
    dst: StateId


@dataclass(frozen=True, slots=True)
class PageShift:
    """Context shift: the keys in `pages`, all layers, are rotated by `distance` positions."""

    pages: tuple[PageId, ...]
    distance: int  # negative: towards the start


class Phase(Enum):
    """What the rows of a grant are to their sequence."""

    PREFILL = "prefill"
    DECODE = "decode"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Grant:
    """Token rows of one sequence: `tokens` in the cells `start`, `start + 1`, ..."""

    seq_id: SeqId
    phase: Phase
    start: int  # also the number of cells computed before this step
    tokens: tuple[int, ...]
    pages: tuple[PageId, ...]  # the whole table in position order, this step's cells included
    draws: tuple[Draw, ...] = ()  # of the last rows, one each; none while known tokens are left
    adapter: Adapter | None = None
    inputs: tuple[Input, ...] = ()  # that have cells among these
    state: StateId | None = None  # where its recurrent layers remember; None without any


class Direction(Enum):
    OUT = "out"  # pool -> host
    IN = "in"  # host -> pool


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies of whole pages and states. Without moves it only marks the time when everything before
    it has landed. It fails as a whole."""

    transfer_id: TransferId
    seq_id: SeqId | None  # whose; None: pages kept as cache
    direction: Direction
    moves: tuple[tuple[PageId | StateId, HostId], ...]


@dataclass(frozen=True, slots=True)
class StateSave:
    """Write `tokens` and the pages that hold them, wherever each lies, to a state file at `path`,
    all or nothing; an older file of that name is replaced."""

    transfer_id: TransferId
    path: str
    tokens: tuple[int, ...]  # whole pages
    pages: tuple[PageId | HostId, ...]


@dataclass(frozen=True, slots=True)
class StateLoad:
    """Read pages of the state file at `path` into places of the host store. Fails, and what the
    places hold is worthless, if the file is not the one that its header spoke of."""

    transfer_id: TransferId
    path: str
    tokens: tuple[int, ...]  # all of the file's
    moves: tuple[tuple[int, HostId], ...]  # which of its pages, and where to


AnyTransfer: TypeAlias = Transfer | StateSave | StateLoad


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: int
    freed: tuple[PageId, ...] = ()  # pages whose content nobody needs any more
    host_freed: tuple[HostId, ...] = ()  # places of which the same is true
    page_copies: tuple[PageCopy, ...] = ()
    state_copies: tuple[StateCopy, ...] = ()
    page_shifts: tuple[PageShift, ...] = ()
    grants: tuple[Grant, ...] = ()
    transfers: tuple[AnyTransfer, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(grant.tokens) for grant in self.grants)

    @property
    def is_empty(self) -> bool:
        copies = self.page_copies or self.state_copies
        return not (copies or self.page_shifts or self.grants or self.transfers)


class FaultKind(Enum):
    """What is at fault where a transfer fails."""

    DEVICE = "device"  # memory or a disk
    GONE = "gone"  # the state file is not there
    REFUSED = "refused"  # the state file is damaged, foreign, or not the one that was meant


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a transfer failed."""

    message: str
    kind: FaultKind = FaultKind.DEVICE


class FinishReason(Enum):
    EOS = "eos"
    STOP_STRING = "stop_string"
    LENGTH = "length"  # max_new_tokens
    CONTEXT = "context"  # the sequence reached n_ctx: `length`, truncated (behaviour S5)


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    logprob: float | None = None  # natural log, of the raw logits
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), most likely first, ties by id


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What came of a plan. Sequences in neither `sampled`, `not_run` nor `failed` computed all
    their granted tokens and had nothing to draw."""

    sampled: Mapping[SeqId, tuple[Sampled, ...]] = field(
        default_factory=dict[SeqId, tuple[Sampled, ...]]
    )  # in the order of the grant's draws, up to the first that its rows do not bear out
    drafts: Mapping[SeqId, tuple[int, ...]] = field(default_factory=dict[SeqId, tuple[int, ...]])
    finished: Mapping[SeqId, FinishReason] = field(default_factory=dict[SeqId, FinishReason])
    not_run: tuple[SeqId, ...] = ()  # no page or room: nothing of the grant was computed
    failed: Mapping[SeqId, str] = field(default_factory=dict[SeqId, str])
    landed: tuple[TransferId, ...] = ()
    failed_transfers: Mapping[TransferId, Fault] = field(default_factory=dict[TransferId, Fault])
    compute_s: float = 0.0  # inside the device's graph executor
    copy_s: float = 0.0  # the copier was busy with transfers, since the last outcome
