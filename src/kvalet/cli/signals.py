"""A clean way out: what a command started ends with it."""

import signal
from types import FrameType


def end_on_sigterm() -> None:
    """As after Ctrl-C: what was started ends with its block."""
    signal.signal(signal.SIGTERM, _end)


def _end(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
