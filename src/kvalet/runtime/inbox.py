"""How other threads speak to the engine thread.

Messages are read in the order they were put. Putting and closing exclude each other: a message is
either accepted and seen by the engine thread, or refused with the reason; none is ever lost.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from kvalet.core.plan import SeqId
from kvalet.errors import Overloaded, RequestError
from kvalet.runtime.messages import SlotState, SlotView, Snapshot
from kvalet.runtime.stream import Stream

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submit:
    streams: tuple[Stream, ...]  # the sequences of one request


@dataclass(frozen=True, slots=True)
class Cancel:
    seq_id: SeqId


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    answer: Future[Snapshot]


@dataclass(frozen=True, slots=True)
class Park:
    """`request_id`: whose slot it is thought to be; None: whoever's."""

    slot: int
    request_id: str | None
    timeout_s: float
    answer: Future[SlotView]


@dataclass(frozen=True, slots=True)
class Resume:
    slot: int
    request_id: str | None
    answer: Future[SlotView]


@dataclass(frozen=True, slots=True)
class Save:
    """Of what an idle slot's last request left, to the state file at `path`."""

    slot: int
    request_id: str | None
    path: str
    answer: Future[SlotState]


@dataclass(frozen=True, slots=True)
class Restore:
    """From the state file at `path`, which holds `tokens`."""

    slot: int
    path: str
    tokens: tuple[int, ...]
    timeout_s: float
    answer: Future[SlotState]


@dataclass(frozen=True, slots=True)
class Erase:
    slot: int
    request_id: str | None
    answer: Future[SlotState]


@dataclass(frozen=True, slots=True)
class Stop:
    """The last message: nothing is accepted after it."""

    reason: str  # what the clients of live sequences are told


SlotOrder: TypeAlias = Park | Resume | Save | Restore | Erase
Message: TypeAlias = Submit | Cancel | TakeSnapshot | SlotOrder | Stop


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


def give(answer: Future[T], make: Callable[[], T]) -> None:
    """Answer with what `make` returns, or with the error it raises. An error that is not the
    asker's is raised here too."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(make())
    except Exception as error:
        answer.set_exception(error)
        if not isinstance(error, RequestError):
            raise


def refuse(answer: Future[T], error: Exception) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)
