"""What goes wrong while planning for one sequence ends that one, and nobody else (SPEC P17).

Whatever an operation takes is on record at its sequence before the next thing can go wrong, so
that ending the sequence gives all of it back. Broken bookkeeping is nobody's: it stops the loop.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvalet.core.sequence import Sequence
from kvalet.errors import InvariantViolation


class Guard:
    def __init__(self, end: Callable[[Sequence, Exception], None]) -> None:
        self._end = end

    @contextmanager
    def __call__(self, seq: Sequence) -> Iterator[None]:
        """`with guard(seq):` around what is done for `seq` alone."""
        try:
            yield
        except InvariantViolation:
            raise
        except Exception as error:
            self._end(seq, error)
