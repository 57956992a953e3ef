"""Orders to the engine thread from other threads, and the one place where they are answered.

An order is a function, run between two steps; what it returns or raises is the answer. One that
starts a transfer returns `Later`, and is answered when that is over. Every order gets one answer.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kvalet.core.plan import Fault, StepOutcome, TransferId
from kvalet.errors import KvaletError, RequestError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Later(Generic[T]):
    """What the answer will be, once the transfer has landed or failed."""

    transfer_id: TransferId
    landed: Callable[[], T]
    failed: Callable[[Fault], KvaletError]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    run: Callable[[], T | Later[T]]
    answer: Future[T]

    def refuse(self, error: Exception) -> None:
        """Without running it."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


class Calls:
    def __init__(self) -> None:
        self._waiting: dict[TransferId, tuple[Later[Any], Future[Any]]] = {}

    def obey(self, call: Call[T]) -> None:
        """One that was cancelled is left out. Raises an error that is not the asker's here too."""
        if not call.answer.set_running_or_notify_cancel():
            return
        try:
            result = call.run()
        except Exception as error:
            call.answer.set_exception(error)
            if not isinstance(error, RequestError):
                raise
            return
        if isinstance(result, Later):
            self._waiting[result.transfer_id] = result, call.answer
        else:
            call.answer.set_result(result)

    def settle(self, outcome: StepOutcome) -> None:
        """Answer those whose transfers are over."""
        if not self._waiting:
            return
        for transfer_id in outcome.landed:
            if waiting := self._waiting.pop(transfer_id, None):
                later, answer = waiting
                answer.set_result(later.landed())
        for transfer_id, fault in outcome.failed_transfers.items():
            if waiting := self._waiting.pop(transfer_id, None):
                later, answer = waiting
                answer.set_exception(later.failed(fault))

    def refuse_all(self, error: Exception) -> None:
        for _, answer in self._waiting.values():
            answer.set_exception(error)
        self._waiting.clear()
