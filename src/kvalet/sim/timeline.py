"""What became of each request, as spans of virtual time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from kvalet.core.sequence import Status


class Phase(Enum):
    WAITING = "waiting"  # for a slot, or for room before its first token
    RUNNING = "running"
    PARKING = "parking"  # its pages go out
    PARKED = "parked"
    RESTORING = "restoring"  # its pages come in, also a new one's that are found by name
    REPLAYING = "replaying"


PHASES = {
    Status.QUEUED: Phase.WAITING,
    Status.STARTED: Phase.WAITING,
    Status.PREFILL: Phase.RUNNING,
    Status.DECODE: Phase.RUNNING,
    Status.PREEMPTING: Phase.PARKING,
    Status.PREEMPTED: Phase.PARKED,
    Status.RESTORING: Phase.RESTORING,
    Status.REPLAY: Phase.REPLAYING,
}


@dataclass(slots=True)
class Timeline:
    """Of one request. Spans follow each other without gaps; the last ends with the request."""

    conversation: int
    arrival_s: float
    priority: int = 0
    end_s: float | None = None
    is_complete: bool = False
    num_output: int = 0
    starts: list[tuple[float, Phase]] = field(default_factory=list[tuple[float, Phase]])

    def enter(self, phase: Phase, now: float) -> None:
        if self.starts and self.starts[-1][1] is phase:
            return
        if self.starts and self.starts[-1][0] == now:
            self.starts.pop()  # it took no time
        self.starts.append((now, phase))

    @property
    def completion_s(self) -> float:
        return (self.end_s or self.arrival_s) - self.arrival_s

    def spans(self) -> Iterator[tuple[Phase, float, float]]:
        """Phase, start and end."""
        ends = [start for start, _ in self.starts[1:]]
        for (start, phase), end in zip(self.starts, [*ends, self.end_s or 0.0], strict=True):
            yield phase, start, end

    @property
    def queued_s(self) -> float:
        """Until it first computed."""
        starts = (start for phase, start, _ in self.spans() if phase is Phase.RUNNING)
        return next(starts, self.end_s or self.arrival_s) - self.arrival_s

    @property
    def longest_wait_s(self) -> float:
        """From a park until it generates again, the longest."""
        longest, parked_at = 0.0, None
        for phase, start, end in self.spans():
            if phase in (Phase.WAITING, Phase.RUNNING):
                parked_at = None
            elif phase in (Phase.PARKING, Phase.PARKED) and parked_at is None:
                parked_at = start
            if parked_at is not None:
                longest = max(longest, end - parked_at)
        return longest
