"""When endless sequences shift their context: at n_ctx, once it can be done (behaviour C1, A6)."""

from kvalet.core import shift
from kvalet.core.guard import Guard
from kvalet.core.pages import PagePool
from kvalet.core.plan import PageCopy, PageShift
from kvalet.core.sequence import RUNNING, Sequence, Status
from kvalet.core.slots import Slots
from kvalet.core.transfers import Transfers


class Shifting:
    def __init__(
        self, n_ctx: int, slots: Slots, pool: PagePool, transfers: Transfers, guard: Guard
    ) -> None:
        self._n_ctx = n_ctx
        self._slots = slots
        self._pool = pool
        self._transfers = transfers
        self._guard = guard

    def is_due(self, seq: Sequence) -> bool:
        return seq.status is Status.DECODE and shift.is_due(seq, self._n_ctx)

    def charge(self) -> None:
        """Note at each sequence what a shift would need, before anybody is parked or let in."""
        for seq in self._slots.active(*RUNNING):
            with self._guard(seq):
                seq.num_to_copy = self._num_to_copy(seq) if self.is_due(seq) else 0

    def run(self, ticket: int) -> tuple[list[PageShift], list[PageCopy]]:
        """Shift those whose pages to copy can be had now. `ticket`: where in the order of the line
        this happens."""
        shifts: list[PageShift] = []
        copies: list[PageCopy] = []
        for seq in filter(self.is_due, self._slots.active()):
            with self._guard(seq):
                if self._can_shift(seq):
                    new_copies, moved = shift.shift(seq, self._pool)
                    copies += new_copies
                    shifts.append(moved)
                    seq.shift_ticket = ticket
        return shifts, copies

    def _can_shift(self, seq: Sequence) -> bool:
        """Not while a copy reads what would change."""
        is_read = any(map(self._transfers.num_holding, shift.pages_moved(seq)))
        return not is_read and self._num_to_copy(seq) <= self._pool.num_clear

    def _num_to_copy(self, seq: Sequence) -> int:
        return sum(self._transfers.num_sharing(page) > 1 for page in shift.pages_moved(seq))
