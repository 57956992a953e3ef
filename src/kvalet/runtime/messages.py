"""What crosses the border between the HTTP side and the engine thread.

The HTTP side submits a `Generation` with a `Sink`; the engine thread calls the sink with `Event`s,
once per step with everything that step produced for it, and never again after a final event
(`Finished` or `Failed`). A sink is called on the engine thread: it hands over and returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvalet.core.plan import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class Generation:
    """One sequence to generate. Token ids are already checked against the vocabulary."""

    request_id: str
    prompt: tuple[int, ...]
    max_new_tokens: int | None  # None: until n_ctx
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    cache_prompt: bool = True
    id_slot: int | None = None
    priority: int = 0
    index: int = 0  # which choice of its request


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A sampled token for `logprobs`/`n_probs`: ids and natural-log probabilities."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is now certain: no part of a stop string, no half of a UTF-8 character. `tokens`
    are the ones whose text this is; empty text is sent only when tokens are reported."""

    text: str
    tokens: tuple[TokenInfo, ...]


@dataclass(frozen=True, slots=True)
class Preempted:
    """The sequence stopped taking part (SPEC N1)."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The sequence takes part again."""


@dataclass(frozen=True, slots=True)
class Timings:
    """The request as made (SPEC X2); milliseconds without the pauses."""

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
    """One slot, for /slots (SPEC M2)."""

    slot: int
    state: str  # core Status name, lower case; "idle" without a request
    request_id: str | None
    is_processing: bool
    is_preempted: bool
    num_prompt_tokens: int
    num_computed: int
    num_generated: int
    max_new_tokens: int | None
    num_pages: int
    n_preempt: int
    n_recompute: int
    parked_ms: float
    sampling: SamplingParams | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine thread's state at a step boundary, for /slots, /metrics, /props and /health."""

    slots: tuple[SlotView, ...]
    queued: int
    gauges: dict[str, float]
    counters: dict[str, float]
