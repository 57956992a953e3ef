"""One live sequence as its client sees it: its text, its times, the events not sent yet.

Decides one thing, whether a drawn token ends the sequence (EOS, stop string); the rest it is told
as changes. Order of a step's events: `Resumed`, text, then whatever else; `Preempted` and `Resumed`
alternate; nothing follows `Finished` or `Failed`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from kvalet.core.changes import Change, ChangeKind
from kvalet.core.plan import FinishReason, Sampled, SeqId
from kvalet.core.request import Request
from kvalet.core.sequence import Sequence
from kvalet.errors import EngineError
from kvalet.runtime.constraint import Constraint
from kvalet.runtime.messages import (
    Delta,
    Event,
    Failed,
    Finished,
    Part,
    Preempted,
    Resumed,
    Sink,
    Timings,
    TokenInfo,
)
from kvalet.runtime.parts import ContentReader, PartReader, joined
from kvalet.runtime.stopwatch import Stopwatch
from kvalet.runtime.text import Piece, TextStream

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What is needed of a tokenizer to turn tokens into text and to know its end."""

    token_bytes: Callable[[int], bytes]
    eos_ids: frozenset[int]


@dataclass(slots=True, eq=False)
class Stream:
    seq: Sequence
    sink: Sink
    text: TextStream
    reader: PartReader
    stopwatch: Stopwatch
    constraint: Constraint | None = None
    is_over: bool = False  # the last event is final
    _is_away: bool = False  # told `Preempted` and not `Resumed` yet
    _parts: list[Part] = field(default_factory=list[Part])  # of this step, until it is known
    _tokens: list[TokenInfo] = field(default_factory=list[TokenInfo])  # what comes before them
    _events: list[Event] = field(default_factory=list[Event])

    @classmethod
    def of(cls, seq_id: SeqId, request: Request, sink: Sink, now: float) -> Self:
        """`now`: when its client asked for it, in seconds."""
        seq, text = Sequence(seq_id, request), TextStream(request.stop)
        return cls(seq, sink, text, ContentReader(), Stopwatch(now))

    def draw(self, sampled: Sampled, vocabulary: Vocabulary) -> FinishReason | None:
        """Take a token of this step; says whether it ends the sequence. EOS has no text."""
        if self.constraint is not None:
            self.constraint.take(sampled.token)
        request = self.seq.request
        if sampled.token in vocabulary.eos_ids and not request.ignore_eos:
            return FinishReason.EOS
        info = None
        if request.sampling.logprobs or request.sampling.num_probs:
            info = TokenInfo(sampled.token, sampled.logprob, sampled.top)
        self._take(self.text.feed(vocabulary.token_bytes(sampled.token), info))
        return FinishReason.STOP_STRING if self.text.stopped_by else None

    def note(self, change: Change, now: float) -> None:
        match change.kind:
            case ChangeKind.WAITING:
                self._leave()
            case ChangeKind.PREEMPTED:
                self.stopwatch.pause(now)
                self._leave()
            case ChangeKind.RESUMED:
                self.stopwatch.resume(now)
                self._is_away = False
                self._events.append(Resumed())
            case ChangeKind.ROTATION_REFUSED:
                pass  # the operator's business
            case ChangeKind.FINISHED:
                self._finish(change.reason, now)
            case ChangeKind.FAILED:
                self.fail(EngineError(change.message))

    def fail(self, error: Exception) -> None:
        """End it with `error`, unless it has ended already and only not been told yet."""
        if not self.is_over:
            self._say(Failed(error))
            self.is_over = True

    def send(self) -> bool:
        """Hand over what this step brought, if anything. False: the sink is broken, which is no
        reason to stop for other clients."""
        self._flush()
        if not self._events:
            return True
        events, self._events = self._events, []
        try:
            self.sink(events)
        except Exception:
            logger.exception("the sink of request %s failed", self.seq.request.request_id)
            return False
        return True

    def _leave(self) -> None:
        """Parked again before it has resumed, it is away already."""
        if not self._is_away:
            self._is_away = True
            self._say(Preempted())

    def _say(self, event: Event) -> None:
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        if self._parts or self._tokens:
            self._events.append(Delta(joined(self._parts), tuple(self._tokens)))
            self._parts.clear()
            self._tokens.clear()

    def _take(self, piece: Piece) -> None:
        self._parts += self.reader.read(piece.text)
        self._tokens += piece.tokens

    def _finish(self, reason: FinishReason | None, now: float) -> None:
        self.stopwatch.stop(now)
        self._take(self.text.finish())
        self._parts += self.reader.finish()
        self._say(self._finished(reason or FinishReason.LENGTH, now))
        self.is_over = True

    def _finished(self, reason: FinishReason, now: float) -> Finished:
        return Finished(
            reason=reason,
            stopping_word=self.text.stopped_by if reason is FinishReason.STOP_STRING else "",
            num_prompt_tokens=self.seq.num_prompt,
            num_tokens=self.seq.num_generated,
            truncated=reason is FinishReason.CONTEXT,
            slot=self.seq.slot,
            timings=self._timings(now),
        )

    def _timings(self, now: float) -> Timings:
        seq = self.seq
        return Timings(
            prompt_n=seq.num_prompt - seq.num_cached,
            cache_n=seq.num_cached,
            prompt_ms=self.stopwatch.prompt_s * 1e3,
            predicted_n=seq.num_generated,
            predicted_ms=self.stopwatch.predicted_s * 1e3,
            n_preempt=seq.num_preempts,
            n_recompute=seq.num_recomputed,
            parked_ms=self.stopwatch.parked_s(now) * 1e3,
        )
