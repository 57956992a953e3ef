"""How other threads speak to the engine thread.

Messages are read in the order they were put. Putting and closing exclude each other: a message is
either accepted and seen by the engine thread, or refused with the reason; none is ever lost.
"""

import queue
import threading
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvalet.core.plan import SeqId
from kvalet.errors import Overloaded
from kvalet.runtime.calls import Call
from kvalet.runtime.stream import Stream


@dataclass(frozen=True, slots=True)
class Submit:
    streams: tuple[Stream, ...]  # the sequences of one request


@dataclass(frozen=True, slots=True)
class Cancel:
    seq_id: SeqId


@dataclass(frozen=True, slots=True)
class Stop:
    """The last message: nothing is accepted after it."""

    reason: str  # what the clients of live sequences are told


Message: TypeAlias = Submit | Cancel | Call[Any] | Stop


class Inbox:
    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed: str | None = None

    def put(self, message: Message) -> None:
        """Raises Overloaded with the reason once the inbox is closed."""
        with self._lock:
            if self._closed is not None:
                raise Overloaded(self._closed)
            if isinstance(message, Stop):
                self._closed = message.reason
            self._messages.put(message)

    def read(self, patience_s: float | None) -> Message | None:
        """The next message; None if none arrives within `patience_s` seconds (None: for ever)."""
        try:
            return self._messages.get(timeout=patience_s)
        except queue.Empty:
            return None

    def close(self, reason: str) -> list[Message]:
        """Refuse everything from now on; returns what was accepted and never read."""
        with self._lock:
            self._closed = self._closed or reason
        unread: list[Message] = []
        while (message := self.read(patience_s=0)) is not None:
            unread.append(message)
        return unread
