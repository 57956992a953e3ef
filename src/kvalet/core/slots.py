"""The slots, and the bounded queue of requests that have none yet (behaviour S1)."""

from collections import deque

from kvalet.core.plan import SlotId
from kvalet.core.sequence import Move, Sequence, Status
from kvalet.errors import Overloaded


class Slots:
    def __init__(self, num_slots: int, max_queue: int) -> None:
        self._max_queue = max_queue
        self._held: list[Sequence | None] = [None] * num_slots
        self._last_used = [0] * num_slots
        self._last: list[Sequence | None] = [None] * num_slots  # that ended in the slot
        self._num_ends = 0
        self._queue: deque[Sequence] = deque()
        self._started: list[Sequence] = []

    @property
    def held(self) -> tuple[Sequence | None, ...]:
        return tuple(self._held)

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def is_empty(self) -> bool:
        return not self._queue and not any(self._held)

    def active(self, *statuses: Status) -> list[Sequence]:
        """Sequences in slots, in slot order; those in one of `statuses` if any are given."""
        return [s for s in self._held if s is not None and (not statuses or s.status in statuses)]

    def everybody(self) -> list[Sequence]:
        return [*self.active(), *self._queue]

    def add(self, family: tuple[Sequence, ...]) -> None:
        """Queue the sequences of a request; they take slots while there are any. Raises
        Overloaded, and queues none, when the request would be one too many without any slot."""
        for seq in family[1:]:
            seq.is_further = True
        self._queue.extend(family)
        self.fill()
        if sum(not seq.is_further for seq in self._queue) > self._max_queue:
            for _ in family:
                self._queue.pop()
            raise Overloaded(f"{self._max_queue} requests are waiting already")

    def fill(self) -> None:
        """Requests take the slot they are pinned to, or the least recently used free one."""
        for seq in list(self._queue):
            slot = self._free_slot(seq.request.id_slot)
            if slot is not None:
                self._queue.remove(seq)
                self._held[slot] = seq
                seq.slot = slot
                seq.move(Move.START)
                self._started.append(seq)

    def take_started(self) -> list[Sequence]:
        """Who took a slot since the last call, in that order."""
        started, self._started = self._started, []
        return started

    def last(self, slot: SlotId) -> Sequence | None:
        """The last sequence that ended in `slot`."""
        return self._last[slot]

    def note_last(self, slot: SlotId, seq: Sequence | None) -> None:
        """As if `seq` had ended in `slot`, or nobody had."""
        self._last[slot] = seq

    def leave(self, seq: Sequence) -> None:
        """`seq` has ended."""
        if seq.slot is None:
            self._queue.remove(seq)
            return
        self._num_ends += 1
        self._held[seq.slot] = None
        self._last[seq.slot] = seq
        self._last_used[seq.slot] = self._num_ends

    def _free_slot(self, wanted: int | None) -> SlotId | None:
        free = [
            SlotId(i) for i, held in enumerate(self._held) if held is None and wanted in (None, i)
        ]
        return min(free, key=lambda i: (self._last_used[i], i), default=None)
