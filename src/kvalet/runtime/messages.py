"""What crosses the border between the HTTP side and the engine thread.

The HTTP side submits a `Request` with a `Sink`; the engine thread calls the sink with `Event`s,
once per step with everything that step produced for it, and never again after a final event
(`Finished` or `Failed`). A sink is called on the engine thread: it hands over and returns.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from kvalet.core.plan import FinishReason
from kvalet.core.request import SamplingParams


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A sampled token for `logprobs`/`n_probs`: ids and natural-log probabilities."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


class PartKind(Enum):
    """What a piece of a generated text is to its reader."""

    CONTENT = "content"


class Part(NamedTuple):
    kind: PartKind
    text: str


def content_of(parts: Iterable[Part]) -> str:
    return "".join([part.text for part in parts if part.kind is PartKind.CONTENT])


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is now certain: no part of a stop string, no half of a UTF-8 character. `tokens`
    are the ones whose text this is; there are no parts only when tokens are reported."""

    parts: tuple[Part, ...]
    tokens: tuple[TokenInfo, ...]

    @property
    def content(self) -> str:
        return content_of(self.parts)


@dataclass(frozen=True, slots=True)
class Preempted:
    """The sequence is parked, or has to wait for room before its first token (behaviour N1, N2)."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The sequence takes part again; one for each `Preempted`, unless it ends before."""


@dataclass(frozen=True, slots=True)
class Timings:
    """The request as made (behaviour X2); milliseconds without the pauses."""

    prompt_n: int  # prompt tokens computed
    cache_n: int  # prompt tokens taken by name
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    n_preempt: int
    n_recompute: int
    parked_ms: float


@dataclass(frozen=True, slots=True)
class Finished:
    reason: FinishReason
    stopping_word: str  # the stop string that matched, or ""
    num_prompt_tokens: int
    num_tokens: int  # generated
    truncated: bool
    slot: int | None
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    error: Exception  # a KvaletError; carries its status hint


Event: TypeAlias = Delta | Preempted | Resumed | Finished | Failed
Sink: TypeAlias = Callable[[Sequence[Event]], None]


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot, for /slots (behaviour M2). The defaults are an idle one's."""

    slot: int
    state: str = "idle"  # or a core Status name, lower case
    request_id: str | None = None
    is_processing: bool = False
    is_preempted: bool = False  # parked, and not yet where it was
    num_prompt_tokens: int = 0
    num_computed: int = 0
    num_generated: int = 0
    max_new_tokens: int | None = None
    n_cells: int = 0  # of the pages it holds in the pool
    n_preempt: int = 0
    n_recompute: int = 0
    parked_ms: float = 0.0
    sampling: SamplingParams | None = None
    preempt_mode: str | None = None  # "swap" or "recompute", while it is preempted
    is_held: bool = False  # parked on request; of an idle slot: what its last request left
    n_cells_host: int = 0  # cells of its that the host store holds, parked or ahead of a park


@dataclass(frozen=True, slots=True)
class SlotState:
    """What was saved of an idle slot, restored for it or erased (behaviour C3)."""

    slot: int
    num_tokens: int  # whole pages
    num_bytes: int = 0  # of the state file
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` values were at most `bounds[i]` and more than the bound before; the last of the
    counts, one more than the bounds, is of those above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine thread's state at a step boundary, for /slots, /metrics, /props and /health.
    Names are those of /metrics without their prefix."""

    slots: tuple[SlotView, ...]
    gauges: dict[str, float]
    counters: dict[str, float]
    histograms: dict[str, Histogram] = field(default_factory=dict[str, Histogram])
