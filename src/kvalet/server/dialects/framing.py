"""How the pieces of a streamed answer follow one another, as bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson


@dataclass(frozen=True, slots=True)
class Framing:
    media_type: str
    comment: Callable[[str], bytes]  # what clients pass over; nothing where there is no such thing


def sse_comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


def sse_event(body: object, name: str | None = None) -> bytes:
    data = b"data: " + orjson.dumps(body) + b"\n\n"
    return data if name is None else f"event: {name}\n".encode() + data


SERVER_SENT_EVENTS: Final = Framing("text/event-stream; charset=utf-8", sse_comment)
