"""From the grants of a plan to the arrays a graph run reads.

Everything a kernel or ggml will use as an index is checked here: an id out of range would end the
process or read foreign memory. A grant that does not pass is refused alone, with a message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kvalet.core.plan import Draw, Grant, SeqId, pages_for
from kvalet.errors import EngineError

Int32Array = np.ndarray[Any, np.dtype[np.int32]]
PADDING: Final = 32  # rows a graph may have beyond those it is given


@dataclass(frozen=True, slots=True)
class Limits:
    num_vocab: int
    num_pages: int
    max_rows: int
    max_seqs: int  # grants in one step, and rows that are drawn from


class Batch:
    """Arrays of one step, allocated once. Rows past `num_rows` are zero: valid, and unread.

    A row has a *cell*, where its K and V go, counted from its sequence's first; a *position*, to
    which rope rotates it; and an *end*: it sees the cells before that one. Of text these are n, n
    and n + 1. From one row of a sequence to the next neither cell nor end may fall.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.num_rows = 0
        self.tokens: Int32Array = np.zeros(limits.max_rows + PADDING, np.int32)
        self.positions: Int32Array = np.zeros(limits.max_rows + PADDING, np.int32)
        self.cells: Int32Array = np.zeros(limits.max_rows, np.int32)
        self.ends: Int32Array = np.zeros(limits.max_rows, np.int32)
        self.row_seq: Int32Array = np.zeros(limits.max_rows, np.int32)
        self.tables: Int32Array = np.zeros((limits.max_seqs, limits.num_pages), np.int32)
        self.outputs: Int32Array = np.zeros(limits.max_seqs + PADDING, np.int32)
        self.num_seqs = 0
        self.draws: list[tuple[SeqId, Draw]] = []  # in the order of `outputs`
        self._counting: Int32Array = np.arange(limits.max_rows, dtype=np.int32)

    def fill(self, grants: Sequence[Grant]) -> dict[SeqId, str]:
        """Lay out in rows what has passed `check`; returns why grants that are left out are."""
        self._clear()
        refused: dict[SeqId, str] = {}
        for grant in grants:
            fault = self._fault_of(grant)
            if fault is None:
                self._add(grant)
            else:
                refused[grant.seq_id] = fault
        self._place()
        return refused

    def check(self, grants: Sequence[Grant]) -> None:
        """Raises EngineError where they are more than a step takes."""
        if len(grants) > self.limits.max_seqs:
            raise EngineError(f"{len(grants)} sequences in a step of {self.limits.max_seqs}")
        num_rows = sum(len(grant.tokens) for grant in grants)
        if num_rows > self.limits.max_rows:
            raise EngineError(f"{num_rows} tokens in a step of {self.limits.max_rows}")
        num_draws = sum(len(grant.draws) for grant in grants)
        if num_draws > self.limits.max_seqs:
            raise EngineError(f"{num_draws} draws in a step of {self.limits.max_seqs}")

    def _clear(self) -> None:
        self.tokens[: self.num_rows] = 0
        self.positions[: self.num_rows] = 0
        self.outputs[: len(self.draws)] = 0
        self.draws.clear()
        self.num_rows = self.num_seqs = 0

    def _fault_of(self, grant: Grant) -> str | None:
        if not grant.tokens:
            return "a grant of no tokens"
        if len(grant.draws) > len(grant.tokens):
            return f"{len(grant.draws)} draws of {len(grant.tokens)} tokens"
        end, limits = grant.start + len(grant.tokens), self.limits
        if grant.start < 0 or not pages_for(end) <= len(grant.pages) <= limits.num_pages:
            return f"{len(grant.pages)} pages for positions {grant.start} to {end}"
        if min(grant.tokens) < 0 or max(grant.tokens) >= limits.num_vocab:
            return f"a token id outside the vocabulary of {limits.num_vocab}"
        if min(grant.pages) < 0 or max(grant.pages) >= limits.num_pages:
            return f"a page id outside the pool of {limits.num_pages}"
        return None

    def _add(self, grant: Grant) -> None:
        index, start = self.num_seqs, self.num_rows
        end = start + len(grant.tokens)
        self.tokens[start:end] = grant.tokens
        self.cells[start:end] = self._counting[: end - start]
        self.cells[start:end] += grant.start
        self.row_seq[start:end] = index
        self.tables[index, : len(grant.pages)] = grant.pages
        self.num_rows = end
        self.num_seqs += 1
        for row, draw in enumerate(grant.draws, start=end - len(grant.draws)):
            self.outputs[len(self.draws)] = row
            self.draws.append((grant.seq_id, draw))

    def _place(self) -> None:
        """Text is rotated to its cell and sees all up to its own."""
        cells = self.cells[: self.num_rows]
        self.positions[: self.num_rows] = cells
        np.add(cells, 1, out=self.ends[: self.num_rows])
