"""THE MAIN LOOP: plan, compute, judge, commit, deliver, over and over, on one thread.

The scheduler decides and never computes, the engine computes and never decides, the outputs talk
to clients; the loop joins them. Between two steps it reads its inbox, the only way in. What
concerns single requests is in a step's outcome; anything else that goes wrong ends the loop, and
with it every live sequence, loudly.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from kvalet.core.plan import SeqId, StepOutcome, StepPlan
from kvalet.core.scheduler import Scheduler
from kvalet.engine.base import Engine
from kvalet.errors import EngineError, EngineFatal, KvaletError, Overloaded, RequestError
from kvalet.runtime.inbox import Cancel, Inbox, Message, Stop, Submit, TakeSnapshot
from kvalet.runtime.messages import Snapshot
from kvalet.runtime.outputs import Outputs
from kvalet.runtime.stream import Stream, Vocabulary
from kvalet.runtime.totals import Totals, take_snapshot

logger = logging.getLogger(__name__)

TRANSFER_POLL_S: Final = 0.001  # between looks at a copy in flight, when a step has nothing else


class EngineLoop:
    """`run` is the engine thread; everything but the inbox belongs to it."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        inbox: Inbox,
        vocabulary: Vocabulary,
        *,
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        check_every_step: bool = False,
    ) -> None:
        """`on_end`: called whenever a submitted sequence is over, whatever the way."""
        self.is_over = False
        self.failure: KvaletError | None = None  # what ended it, unless it was told to stop
        self._scheduler = scheduler
        self._engine = engine
        self._inbox = inbox
        self._clock = clock
        self._check_every_step = check_every_step
        self._totals = Totals()
        self._outputs = Outputs(vocabulary, self._totals, clock, on_end)
        self._plan = StepPlan(step=0)
        self._stop: Stop | None = None

    def step(self) -> None:
        """One step of every sequence that takes part."""
        started = self._clock()
        self._plan = plan = self._scheduler.plan(started)
        self._outputs.begin(plan, self._scheduler.take_changes(), started)
        outcome = self._outputs.judge(self._execute(plan))
        self._scheduler.commit(plan, outcome)
        for broken in self._outputs.deliver(self._scheduler.take_changes()):
            self._cancel(broken)
        self._totals.count_step(plan, outcome, self._clock() - started)

    def run(self) -> None:
        """Step until told to stop or until something breaks; then every client is told."""
        try:
            while self._stop is None:
                self._receive()
                if self._scheduler.has_work:
                    self.step()
                if self._check_every_step or not self._scheduler.has_work:
                    self._scheduler.check()
            self._end(Overloaded(self._stop.reason))
        except Exception as error:
            logger.critical("the engine thread ends in step %r", self._plan, exc_info=error)
            self.failure = _as_kvalet_error(error)
            self._end(self.failure)

    def _execute(self, plan: StepPlan) -> StepOutcome:
        """A step that fails as a whole ends the sequences that take part in it, and no others."""
        try:
            return self._engine.execute(plan)
        except EngineError as error:
            if isinstance(error, EngineFatal) or plan.is_empty:
                raise
            logger.exception("step %d failed", plan.step)
            return StepOutcome(
                failed={grant.seq_id: str(error) for grant in plan.grants},
                failed_transfers={copy.transfer_id: str(error) for copy in plan.transfers},
            )

    def _receive(self) -> None:
        """Do what other threads ask for; wait for them when there is nothing to compute."""
        message = self._inbox.read(self._patience_s())
        while message is not None:
            self._handle(message)
            message = self._inbox.read(patience_s=0)

    def _patience_s(self) -> float | None:
        if not self._scheduler.has_work:
            return None
        return TRANSFER_POLL_S if self._plan.is_empty else 0

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(stream):
                self._add(stream)
            case Cancel(seq_id):
                self._cancel(seq_id)
            case TakeSnapshot(answer):
                if answer.set_running_or_notify_cancel():
                    answer.set_result(self._snapshot())
            case Stop():
                self._stop = message

    def _add(self, stream: Stream) -> None:
        self._outputs.open(stream)
        try:
            self._scheduler.add(stream.seq)
        except (RequestError, Overloaded) as error:
            self._outputs.fail(stream.seq.seq_id, error)

    def _cancel(self, seq_id: SeqId) -> None:
        self._outputs.close(seq_id)
        self._scheduler.cancel(seq_id)

    def _snapshot(self) -> Snapshot:
        page_bytes = self._engine.info.page_bytes
        return take_snapshot(self._scheduler, self._totals, page_bytes, self._outputs.parked_s)

    def _end(self, error: KvaletError) -> None:
        """Nobody is left without an answer, also those whose messages were not read yet."""
        self.is_over = True
        for message in self._inbox.close(str(error)):
            match message:
                case Submit(stream):
                    self._outputs.open(stream)
                case Cancel(seq_id):
                    self._outputs.close(seq_id)
                case TakeSnapshot(answer):
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(error)
                case Stop():
                    pass
        self._outputs.fail_all(error)
        try:
            self._engine.close()
        except Exception:
            logger.exception("the engine did not close")


def _as_kvalet_error(error: Exception) -> KvaletError:
    if isinstance(error, KvaletError):
        return error
    return EngineFatal(f"the engine stopped: {type(error).__name__}: {error}")
