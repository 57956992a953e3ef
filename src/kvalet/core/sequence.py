"""One token stream, its states, and the table of its legal transitions.

A sequence knows its tokens and which pages hold their keys and values. It knows nothing of the
pool or of other sequences; only the scheduler and what it is made of change it.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NewType

from kvalet.core.plan import PAGE_CELLS, FinishReason, PageId, SeqId, SlotId, Tier
from kvalet.core.request import Request
from kvalet.errors import InvariantViolation

PageName = NewType("PageName", bytes)  # a strong hash chained over all token ids up to the page


class Status(Enum):
    QUEUED = "queued"  # no slot yet
    STARTED = "started"  # has a slot, holds nothing
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTING = "preempting"  # its pages are being copied out
    PREEMPTED = "preempted"  # holds nothing in the pool
    RESTORING = "restoring"  # its pages are being copied in
    REPLAY = "replay"  # computes again what it had computed before
    ENDED = "ended"


class Move(Enum):
    START = "takes a slot"
    COMPUTED = "all known tokens computed"
    PARK = "copy out issued"
    DROP = "parked without a copy"
    PARKED = "copy out landed"
    PARK_FAILED = "copy out failed, goes on"
    RESTORE = "copy in issued"
    RESTORE_FAILED = "copy in failed"
    TO_PREFILL = "goes on with its prompt"
    TO_DECODE = "goes on generating"
    TO_REPLAY = "computes again"
    END = "ends"


class ParkMode(Enum):
    SWAP = "swap"  # some byte has to come back from the host's memory
    DISK = "disk"  # from a file
    RECOMPUTE = "recompute"

    @classmethod
    def of(cls, tier: Tier | None) -> "ParkMode":
        """Of a park into that tier of the host store, or into none."""
        if tier is None:
            return cls.RECOMPUTE
        return cls.DISK if tier is Tier.DISK else cls.SWAP


_ALIVE = tuple(status for status in Status if status is not Status.ENDED)

TRANSITIONS: Final[dict[tuple[Status, Move], Status]] = {
    (Status.QUEUED, Move.START): Status.STARTED,
    (Status.STARTED, Move.TO_PREFILL): Status.PREFILL,
    (Status.STARTED, Move.RESTORE): Status.RESTORING,
    (Status.PREFILL, Move.COMPUTED): Status.DECODE,
    (Status.REPLAY, Move.COMPUTED): Status.DECODE,
    (Status.REPLAY, Move.TO_PREFILL): Status.PREFILL,
    **{(s, Move.PARK): Status.PREEMPTING for s in (Status.PREFILL, Status.DECODE, Status.REPLAY)},
    **{(s, Move.DROP): Status.PREEMPTED for s in (Status.PREFILL, Status.DECODE, Status.REPLAY)},
    (Status.PREEMPTING, Move.PARKED): Status.PREEMPTED,
    (Status.PREEMPTING, Move.PARK_FAILED): Status.DECODE,
    (Status.PREEMPTED, Move.RESTORE): Status.RESTORING,
    (Status.RESTORING, Move.RESTORE_FAILED): Status.PREEMPTED,
    **{
        (before, move): after
        for before in (Status.PREEMPTED, Status.RESTORING)
        for move, after in (
            (Move.TO_PREFILL, Status.PREFILL),
            (Move.TO_DECODE, Status.DECODE),
            (Move.TO_REPLAY, Status.REPLAY),
        )
    },
    **{(status, Move.END): Status.ENDED for status in _ALIVE},
}

RUNNING: Final = (Status.PREFILL, Status.DECODE, Status.REPLAY)
RESIDENT: Final = (*RUNNING, Status.RESTORING)  # holds pages and will take part
WAITING: Final = (Status.STARTED, Status.PREEMPTING, Status.PREEMPTED)  # stands in the line


def page_name(parent: bytes, tokens: list[int]) -> PageName:
    """Name of a full page of `tokens` whose predecessor (or root) is called `parent`."""
    ids = struct.pack(f"<{PAGE_CELLS}i", *tokens)
    return PageName(hashlib.blake2b(parent + ids, digest_size=32).digest())


@dataclass(slots=True, eq=False)
class Sequence:
    seq_id: SeqId
    request: Request
    is_further: bool = False  # stands in the queue behind the first of its request
    is_endless: bool = False  # shifts its context at n_ctx instead of ending (behaviour C1)

    status: Status = Status.QUEUED
    slot: SlotId | None = None
    tokens: list[int] = field(init=False)  # prompt and generated; the last may not be computed yet
    num_computed: int = 0  # tokens whose K and V are in the pages of `table`, or were when parked
    table: list[PageId] = field(default_factory=list[PageId])  # in position order
    line_ticket: int = 0  # when its waiting began, as a count
    waiting_since: float = 0.0  # the same in seconds
    is_held: bool = False  # to be parked on request, and outside the line until resumed
    held_until: float = 0.0  # seconds
    makes_way: bool = False  # parked by rotation, for whoever stands in the line before it

    num_cached: int = 0  # prompt tokens taken by name at first admission
    num_preempts: int = 0
    num_recomputed: int = 0  # tokens replayed, over all parks
    replay_until: int = 0  # positions below were computed once already
    forced_at: int = 0  # num_generated at its last forced park
    is_announced: bool = False  # the client was told that it is parked or waits
    park_mode: ParkMode | None = None  # of its last park, until it takes part again
    num_dropped: int = 0  # tokens that context shifts took out of `tokens`
    shift_ticket: int = -1  # its last context shift, on the scale of `line_ticket`
    name_limit: int | None = None  # pages from here on have no names: a shift has moved them
    refused_at: int = -1  # line ticket of the park for which a rotation was refused
    num_to_copy: int = 0  # shared pages it must copy before its coming shift
    failing_since: float | None = None  # seconds; since when it is in doubt that it comes back
    num_mirrored: int = 0  # first pages that were looked at for copying ahead of a park
    finish_reason: FinishReason | None = None
    _names: list[PageName] = field(default_factory=list[PageName])

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    def move(self, move: Move) -> None:
        after = TRANSITIONS.get((self.status, move))
        if after is None:
            raise InvariantViolation(f"sequence {self.seq_id} is {self.status.value}: {move.value}")
        self.status = after

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) + self.num_dropped - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens known but not computed; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def is_resident(self) -> bool:
        return self.status in RESIDENT

    @property
    def can_replay(self) -> bool:
        """A shifted context cannot be computed from its tokens: its keys saw what was dropped."""
        return self.num_dropped == 0

    @property
    def max_named(self) -> int:
        """First pages that may be taken by name: full ones, never the last known token's, which is
        computed for its logits (behaviour S4)."""
        return (len(self.tokens) - 1) // PAGE_CELLS

    def num_left(self, n_ctx: int) -> int:
        """Tokens it may still generate; n_ctx stands for any number."""
        room = n_ctx if self.is_endless else n_ctx - len(self.tokens)
        limit = self.request.max_new_tokens
        if limit is None:
            return room
        return min(room, limit - self.num_generated)

    def page_tokens(self, index: int) -> list[int]:
        return self.tokens[index * PAGE_CELLS : (index + 1) * PAGE_CELLS]

    def drop_tokens(self, first: int, count: int) -> None:
        """Take `count` tokens at `first` out of the middle: a context shift, in whole pages."""
        del self.tokens[first : first + count]
        self.name_limit = first // PAGE_CELLS
        del self._names[self.name_limit :]
        self.num_dropped += count
        self.num_computed -= count
        self.replay_until = 0

    def name_of(self, index: int, root: bytes) -> PageName:
        """Name of its page `index`, all of whose 32 tokens must be known."""
        while len(self._names) <= index:
            parent = self._names[-1] if self._names else root
            self._names.append(page_name(parent, self.page_tokens(len(self._names))))
        return self._names[index]
