"""The streams of all live sequences: between what the engine drew and what clients are told.

A stream is open from the moment its sequence is handed to the scheduler until its final event or
its cancellation. Knows nothing of policy; a step passes through `begin`, `constrain`,
`judge` and `deliver`.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from kvalet.core.changes import Change
from kvalet.core.plan import SeqId, StepOutcome, StepPlan
from kvalet.engine.base import DrawMask
from kvalet.runtime.constraint import masks_of
from kvalet.runtime.metrics import Metrics
from kvalet.runtime.parks import ParkLog
from kvalet.runtime.stream import Stream, Vocabulary

logger = logging.getLogger(__name__)


class Outputs:
    """`on_end` is called once for every stream that was opened, with its id."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        metrics: Metrics,
        parks: ParkLog,
        clock: Callable[[], float],
        on_end: Callable[[SeqId], None],
    ) -> None:
        self._vocabulary = vocabulary
        self._metrics = metrics
        self._parks = parks
        self._clock = clock
        self._on_end = on_end
        self._streams: dict[SeqId, Stream] = {}

    def open(self, stream: Stream) -> None:
        self._streams[stream.seq.seq_id] = stream

    def close(self, seq_id: SeqId) -> None:
        """Nothing more is sent to it; unknown ids are ignored."""
        self._parks.forget(seq_id)
        if self._streams.pop(seq_id, None) is not None:
            self._on_end(seq_id)

    def fail(self, seq_id: SeqId, error: Exception) -> None:
        stream = self._streams[seq_id]
        stream.fail(error)
        stream.send()
        self.close(seq_id)

    def fail_all(self, error: Exception) -> None:
        for seq_id in list(self._streams):
            self.fail(seq_id, error)

    def begin(self, plan: StepPlan, changes: list[Change], now: float) -> None:
        """A step starts: which sequences take part, and what planning it changed."""
        for grant in plan.grants:
            queued_s = self._streams[grant.seq_id].stopwatch.start(now)
            if queued_s is not None:
                self._metrics.queue.observe(queued_s)
        self._note(changes, now)
        self._parks.begin(plan)

    def constrain(self, plan: StepPlan) -> Iterator[DrawMask]:
        """What the draws of a step may give, where that is not anything. Each mask is made when it
        is asked for."""
        for grant in plan.grants:
            constraint = self._streams[grant.seq_id].constraint
            if constraint is not None:
                yield from masks_of(grant, constraint)

    def judge(self, outcome: StepOutcome) -> StepOutcome:
        """Turn drawn tokens into text; returns the outcome with the sequences that end there, and
        without what was drawn behind an end."""
        now = self._clock()
        sampled, finished = dict(outcome.sampled), dict(outcome.finished)
        for seq_id, drawn in outcome.sampled.items():
            stream = self._streams[seq_id]
            for count, token in enumerate(drawn, start=1):
                self._count_token(stream, stream.seq.num_generated + count, now)
                reason = stream.draw(token, self._vocabulary)
                if reason is not None:
                    sampled[seq_id], finished[seq_id] = drawn[:count], reason
                    break
        return replace(outcome, sampled=sampled, finished=finished)

    def deliver(self, changes: list[Change]) -> list[SeqId]:
        """Tell every client what the step brought it; returns the sequences with a broken sink."""
        now = self._clock()
        self._parks.settle(now)
        self._note(changes, now)
        broken = [seq_id for seq_id, stream in self._streams.items() if not stream.send()]
        for seq_id in [seq_id for seq_id, stream in self._streams.items() if stream.is_over]:
            self.close(seq_id)
        return broken

    def parked_s(self, seq_id: SeqId) -> float:
        return self._streams[seq_id].stopwatch.parked_s(self._clock())

    def _count_token(self, stream: Stream, number: int, now: float) -> None:
        waited_s, own_s = stream.stopwatch.waited_s(now), stream.stopwatch.draw(now)
        if number == 1:
            self._metrics.count_first_token(stream.seq, waited_s, own_s)
        else:
            self._metrics.count_next_token(waited_s, own_s)

    def _note(self, changes: list[Change], now: float) -> None:
        for change in changes:
            stream = self._streams[change.seq_id]
            stream.note(change, now)
            self._parks.note(change, stream.seq, stream.stopwatch.last_pause_s, now)
            if change.error is not None:
                request_id = stream.seq.request.request_id
                logger.error("planning for %s failed", request_id, exc_info=change.error)
