"""What goes wrong in planning ends the sequences it concerns, and nobody else (behaviour P17).

Whatever an operation takes is on record at its sequence before the next thing can go wrong, so
that ending the sequence gives all of it back. Broken bookkeeping is nobody's: it stops the loop.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvalet.core.sequence import Sequence
from kvalet.errors import InvariantViolation


class Guard:
    """`taking_part`: whom a fault concerns that is nobody's own. `end`: ends one with its error."""

    def __init__(
        self,
        taking_part: Callable[[], list[Sequence]],
        end: Callable[[Sequence, Exception], None],
    ) -> None:
        self._taking_part = taking_part
        self._end = end

    @contextmanager
    def __call__(self, *concerned: Sequence) -> Iterator[None]:
        """Around what is done for `concerned`; none named: for all that take part together."""
        try:
            yield
        except InvariantViolation:
            raise
        except Exception as error:
            ending = concerned or self._taking_part()
            if not ending:
                raise
            for seq in ending:
                self._end(seq, error)
