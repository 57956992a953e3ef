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

from kvalet.core.plan import Fault, SeqId, StepOutcome, StepPlan
from kvalet.core.scheduler import Scheduler
from kvalet.engine.base import Engine
from kvalet.errors import EngineError, EngineFatal, KvaletError, Overloaded, RequestError
from kvalet.runtime.calls import Call, Calls
from kvalet.runtime.control import SlotControl
from kvalet.runtime.inbox import Cancel, Inbox, Message, Stop, Submit
from kvalet.runtime.metrics import Metrics
from kvalet.runtime.outputs import Outputs
from kvalet.runtime.parks import ParkLog
from kvalet.runtime.record import StepRecorder
from kvalet.runtime.snapshot import Snapshots
from kvalet.runtime.stream import Stream, Vocabulary

logger = logging.getLogger(__name__)

# Between two looks when the last step brought nothing: at a copy in flight, and at the time.
TRANSFER_POLL_S: Final = 0.001
HELD_POLL_S: Final = 0.05


class EngineLoop:
    """`run` is the engine thread; everything but the inbox belongs to it. `control` and `snapshots`
    are for calls, which other threads put into the inbox."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        inbox: Inbox,
        vocabulary: Vocabulary,
        *,
        on_end: Callable[[SeqId], None] = lambda seq_id: None,
        clock: Callable[[], float] = time.monotonic,
        check_every_step: bool = False,
        recorder: StepRecorder | None = None,
    ) -> None:
        """`on_end`: called whenever a submitted sequence is over, whatever the way. `recorder` is
        closed with the loop."""
        self.is_over = False
        self.failure: KvaletError | None = None  # what ended it, unless it was told to stop
        self._scheduler = scheduler
        self._engine = engine
        self._inbox = inbox
        self._clock = clock
        self._check_every_step = check_every_step
        self._recorder = recorder
        self._metrics = metrics = Metrics()
        page_bytes = engine.info.page_bytes
        parks = ParkLog(page_bytes, metrics.parked)
        self._outputs = Outputs(vocabulary, metrics, parks, clock, on_end)
        self._calls = Calls()
        self.snapshots = Snapshots(scheduler, metrics, page_bytes, self._outputs.parked_s)
        self.control = SlotControl(scheduler, self.snapshots, clock)
        self._plan = StepPlan(step=0)
        self._is_quiet = False  # the last step brought nothing
        self._stop: Stop | None = None

    def step(self) -> None:
        """One step of every sequence that takes part."""
        started = self._clock()
        self._plan = plan = self._scheduler.plan(started)
        planned = self._scheduler.take_changes()
        self._outputs.begin(plan, planned, started)
        outcome = self._outputs.judge(self._execute(plan))
        self._scheduler.commit(plan, outcome)
        self._calls.settle(outcome)
        for broken in self._outputs.deliver(self._scheduler.take_changes()):
            self._cancel(broken)
        seconds = self._clock() - started
        self._metrics.count_step(plan, outcome, seconds)
        if self._recorder is not None:
            self._recorder.add(plan, outcome, seconds)
        self._report_mirroring()
        came_of_copies = outcome.landed or outcome.failed_transfers
        self._is_quiet = plan.is_empty and not planned and not came_of_copies

    def _report_mirroring(self) -> None:
        fault = self._scheduler.take_mirroring_fault()
        if fault is not None:
            logger.error("pages are no longer copied ahead", exc_info=fault)

    def run(self) -> None:
        """Step until told to stop or until something breaks; then every client is told."""
        try:
            while self._stop is None:
                self._receive()
                if self._is_busy:
                    self.step()
                if self._check_every_step or not self._is_busy:
                    self._scheduler.check()
            self._end(Overloaded(self._stop.reason))
        except Exception as error:
            logger.critical("the engine thread ends in step %r", self._plan, exc_info=error)
            self.failure = _as_kvalet_error(error)
            self._end(self.failure)

    @property
    def _is_busy(self) -> bool:
        """Whether there is something to do, or a time to watch."""
        return self._scheduler.has_work or bool(self._scheduler.kept_slots)

    def _execute(self, plan: StepPlan) -> StepOutcome:
        """A step that fails as a whole ends the sequences that take part in it, and no others."""
        try:
            return self._engine.execute(plan, self._outputs.constrain(plan))
        except EngineFatal:
            raise
        except EngineError as error:
            logger.exception("step %d failed", plan.step)
            return StepOutcome(
                failed={grant.seq_id: str(error) for grant in plan.grants},
                failed_transfers={copy.transfer_id: Fault(str(error)) for copy in plan.transfers},
            )

    def _receive(self) -> None:
        """Do what other threads ask for; wait for them when there is nothing to compute."""
        message = self._inbox.read(self._patience_s())
        while message is not None:
            self._handle(message)
            message = self._inbox.read(patience_s=0)

    def _patience_s(self) -> float | None:
        if not self._is_busy:
            return None
        if not self._is_quiet:
            return 0
        return TRANSFER_POLL_S if self._scheduler.is_in_flight else HELD_POLL_S

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(streams):
                self._add(streams)
            case Cancel(seq_id):
                self._cancel(seq_id)
            case Call():
                self._calls.obey(message)
            case Stop():
                self._stop = message

    def _add(self, streams: tuple[Stream, ...]) -> None:
        for stream in streams:
            self._outputs.open(stream)
        try:
            self._scheduler.add(*(stream.seq for stream in streams))
        except (RequestError, Overloaded) as error:
            for stream in streams:
                self._outputs.fail(stream.seq.seq_id, error)

    def _cancel(self, seq_id: SeqId) -> None:
        self._outputs.close(seq_id)
        self._scheduler.cancel(seq_id)

    def _end(self, error: KvaletError) -> None:
        """Every client gets its answer, also those of messages that were not read yet."""
        self.is_over = True
        for message in self._inbox.close(str(error)):
            self._turn_away(message, error)
        self._outputs.fail_all(error)
        self._calls.refuse_all(error)
        if self._recorder is not None:
            self._recorder.close()
        try:
            self._engine.close()
        except Exception:
            logger.exception("the engine did not close")

    def _turn_away(self, message: Message, error: KvaletError) -> None:
        match message:
            case Submit(streams):
                for stream in streams:
                    self._outputs.open(stream)
            case Cancel(seq_id):
                self._outputs.close(seq_id)
            case Call():
                message.refuse(error)
            case Stop():
                pass


def _as_kvalet_error(error: Exception) -> KvaletError:
    if isinstance(error, KvaletError):
        return error
    return EngineFatal(f"the engine stopped: {type(error).__name__}: {error}")
