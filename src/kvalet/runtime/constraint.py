"""What may be drawn next: the seam for grammars and schemas. No sequence has a constraint today."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from kvalet.core.plan import Grant
from kvalet.engine.base import DrawMask


class Constraint(Protocol):
    """What the text of one sequence may become. Only removes candidates (behaviour G1)."""

    def mask(self, ahead: Sequence[int]) -> bytes | None:
        """The tokens that may follow what was taken and then `ahead`, as `DrawMask.allowed` has
        them; None: any."""
        ...

    def take(self, token: int) -> None:
        """It was drawn."""
        ...


def masks_of(grant: Grant, constraint: Constraint) -> Iterator[DrawMask]:
    """For each of its draws. The rows of all but the first are drafts: of guessed tokens."""
    drafts = grant.tokens[len(grant.tokens) - len(grant.draws) + 1 :]
    for count, draw in enumerate(grant.draws):
        allowed = constraint.mask(drafts[:count])
        if allowed is not None:
            yield DrawMask(grant.seq_id, draw.index, allowed)
