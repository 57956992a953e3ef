"""What the pieces of a generated text are to their reader: the stage between text and events.

It comes behind the stop strings, so what it is given is certain; what a piece is may take more text
to tell, and is held back until then.
"""

from collections.abc import Iterable
from typing import Protocol

from kvalet.runtime.messages import Part, PartKind


class PartReader(Protocol):
    """Of one sequence. What it gives, joined, need not be the text: marks of a format go."""

    def read(self, text: str) -> tuple[Part, ...]: ...

    def finish(self) -> tuple[Part, ...]:
        """No more text comes: let go of what was held back."""
        ...


class ContentReader:
    """All text is what the reader asked for."""

    def read(self, text: str) -> tuple[Part, ...]:
        return (Part(PartKind.CONTENT, text),) if text else ()

    def finish(self) -> tuple[Part, ...]:
        return ()


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Neighbours of a kind made one."""
    result: list[Part] = []
    for part in parts:
        if result and result[-1].kind is part.kind:
            result[-1] = Part(part.kind, result[-1].text + part.text)
        else:
            result.append(part)
    return tuple(result)
