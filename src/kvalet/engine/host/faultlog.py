"""Why copies fail, for the operator: requests get by without, so nobody else would say it."""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

QUIET_S: Final = 60.0

_NUMBER: Final = re.compile("[0-9]+")

logger = logging.getLogger("kvalet.engine")


@dataclass(slots=True)
class _Told:
    at: float  # seconds
    num_since: int = 0


class FaultLog:
    """Tells each reason at once, then once a minute at most, with how often it came up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def note(self, message: str) -> None:
        now, reason = self._clock(), _reason(message)
        told = self._told.get(reason)
        if told is not None and now - told.at < QUIET_S:
            told.num_since += 1
            return
        self._told[reason] = _Told(now)
        if told is not None and told.num_since:
            message += f" (and {told.num_since} times since the last such line)"
        logger.warning("a copy failed: %s", message)


def _reason(message: str) -> str:
    """What comes last in a message says why, the rest and the numbers say where."""
    return _NUMBER.sub("#", message.rpartition(": ")[2])
