"""The streams of all live sequences: between what the engine drew and what clients are told.

A stream is open from the moment its sequence is handed to the scheduler until its final event or
its cancellation. Knows nothing of policy; a step passes through `begin`, `judge` and `deliver`.
"""

from collections.abc import Callable
from dataclasses import replace

from kvalet.core.changes import Change
from kvalet.core.plan import SeqId, StepOutcome, StepPlan
from kvalet.runtime.stream import Stream, Vocabulary
from kvalet.runtime.totals import Totals


class Outputs:
    """`on_end` is called once for every stream that was opened."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        totals: Totals,
        clock: Callable[[], float],
        on_end: Callable[[], None],
    ) -> None:
        self._vocabulary = vocabulary
        self._totals = totals
        self._clock = clock
        self._on_end = on_end
        self._streams: dict[SeqId, Stream] = {}

    def open(self, stream: Stream) -> None:
        self._streams[stream.seq.seq_id] = stream

    def close(self, seq_id: SeqId) -> None:
        """Nothing more is sent to it; unknown ids are ignored."""
        if self._streams.pop(seq_id, None) is not None:
            self._on_end()

    def fail(self, seq_id: SeqId, error: Exception) -> None:
        stream = self._streams[seq_id]
        stream.fail(error)
        stream.send()
        self.close(seq_id)

    def fail_all(self, error: Exception) -> None:
        for seq_id in list(self._streams):
            self.fail(seq_id, error)

    def begin(self, plan: StepPlan, changes: list[Change], now: float) -> None:
        """A step starts: who takes part in it, and what planning it changed."""
        for grant in plan.grants:
            self._streams[grant.seq_id].stopwatch.start(now)
        self._note(changes, now)

    def judge(self, outcome: StepOutcome) -> StepOutcome:
        """Turn drawn tokens into text; returns the outcome with the sequences that end there."""
        now = self._clock()
        finished = dict(outcome.finished)
        for seq_id, sampled in outcome.sampled.items():
            stream = self._streams[seq_id]
            self._totals.count_token(stream.seq, stream.stopwatch.draw(now))
            reason = stream.draw(sampled, self._vocabulary)
            if reason is not None:
                finished[seq_id] = reason
        return replace(outcome, finished=finished)

    def deliver(self, changes: list[Change]) -> list[SeqId]:
        """Tell every client what the step brought it; returns those whose sink is broken."""
        self._note(changes, self._clock())
        broken = [seq_id for seq_id, stream in self._streams.items() if not stream.send()]
        for seq_id in [seq_id for seq_id, stream in self._streams.items() if stream.is_over]:
            self.close(seq_id)
        return broken

    def parked_s(self, seq_id: SeqId) -> float:
        return self._streams[seq_id].stopwatch.parked_s(self._clock())

    def _note(self, changes: list[Change], now: float) -> None:
        for change in changes:
            self._streams[change.seq_id].note(change, now)
