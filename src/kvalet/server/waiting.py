"""Waiting for what the engine thread answers, but not for ever."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from kvalet.errors import Overloaded

T = TypeVar("T")

STEP_BOUNDARY_S = 10.0  # one is at most a step away


async def answered(future: Future[T], timeout_s: float = STEP_BOUNDARY_S) -> T:
    """Raises Overloaded if no answer comes in time, and whatever the engine thread failed with."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
    except TimeoutError:
        raise Overloaded("the engine is busy") from None
