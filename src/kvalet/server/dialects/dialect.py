"""What a dialect is: one way to ask for text, and to be answered.

The routes and replies know this module and no dialect in particular. A dialect keeps nothing:
parsing a body gives a `Job`, and that brings the `Answer` which writes down what happens to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvalet.core.request import Request
from kvalet.runtime.messages import Delta, Finished, Part, TokenInfo, content_of
from kvalet.server.dialects.body import Body
from kvalet.server.dialects.error import ErrorReport
from kvalet.server.dialects.framing import Framing
from kvalet.server.model import ServedModel


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server's flags say for requests that do not."""

    max_new_tokens: int | None = None


@dataclass(slots=True)
class Choice:
    """Everything that one sequence said."""

    finished: Finished
    parts: list[Part] = field(default_factory=list[Part])
    tokens: list[TokenInfo] = field(default_factory=list[TokenInfo])

    @property
    def content(self) -> str:
        return content_of(self.parts)


class Answer(Protocol):
    """The response to one request, written either piece by piece, as events come, or whole. Knows
    neither HTTP nor where the events come from. `index` is that of a sequence in its request."""

    @property
    def framing(self) -> Framing:
        """Of the stream that the pieces make."""
        ...

    def begin(self) -> bytes:
        """What a stream opens with."""
        ...

    def delta(self, index: int, delta: Delta) -> bytes: ...

    def close(self, index: int, finished: Finished) -> bytes: ...

    def end(self) -> bytes:
        """Every sequence is closed."""
        ...

    def error(self, report: ErrorReport) -> bytes:
        """What a stream ends with instead, once something of it was sent."""
        ...

    def whole(self, choices: Sequence[Choice]) -> object:
        """The JSON of an answer that is no stream; one choice for each sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """What came of a body. It is complete: nothing of the body is looked at afterwards."""

    requests: tuple[Request, ...]  # the choices of the first prompt, of the second, ...
    answer: Answer
    stream: bool
    ping_interval_s: float | None  # None: the server's


class Dialect(Protocol):
    @property
    def paths(self) -> tuple[str, ...]:
        """Where it is spoken, with POST."""
        ...

    @property
    def body(self) -> type[Body]:
        """The fields that work, and those that are ignored or refused."""
        ...

    def parse(self, model: ServedModel, defaults: Defaults, raw: bytes) -> Job:
        """Pure work for a worker thread. Raises RequestError, naming the field."""
        ...

    def error(self, report: ErrorReport) -> object:
        """The JSON of an error before anything was sent; also of those that came before `parse`."""
        ...
