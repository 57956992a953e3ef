"""What an idle slot's last request left, as a state file: saved, restored, erased (behaviour C3).

Whole pages only. What is saved is found wherever it lies, in the pool or the host store; what is
restored is parked with its slot, as if it had been put there by hand, until a request begins with
the same tokens.
"""

from kvalet.core.keeping import Keeping
from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import PAGE_CELLS, SeqId, SlotId, TransferId
from kvalet.core.request import Request
from kvalet.core.sequence import Sequence, Status
from kvalet.core.slots import Slots
from kvalet.core.store import HostStore
from kvalet.core.transfers import Transfers
from kvalet.errors import Conflict


class States:
    def __init__(
        self,
        slots: Slots,
        pool: PagePool,
        store: HostStore,
        transfers: Transfers,
        parking: Parking,
        keeping: Keeping,
    ) -> None:
        self._slots = slots
        self._pool = pool
        self._store = store
        self._transfers = transfers
        self._parking = parking
        self._keeping = keeping
        self._num_restores = 0

    def save(self, slot: SlotId, path: str) -> tuple[TransferId, int]:
        """Write the first pages that `slot`'s last request left, as far as they are still to be
        had; also returns how many tokens that is. Raises Conflict if it is none."""
        seq = self._idle(slot)
        places = self._parking.places_of_ended(seq)
        if not places:
            raise Conflict(f"slot {slot} is idle and holds nothing to save")
        num_tokens = len(places) * PAGE_CELLS
        return self._transfers.save(path, tuple(seq.tokens[:num_tokens]), places), num_tokens

    def restore(
        self, slot: SlotId, path: str, tokens: tuple[int, ...], timeout_s: float
    ) -> TransferId:
        """Read a state file that holds `tokens`, whole pages, for `slot`. Raises Conflict if the
        slot is not idle, or the budget does not hold them. A file that turns out to be broken
        changes nothing."""
        if self._slots.held[slot] is not None:
            raise Conflict(f"slot {slot} is not idle")
        self._num_restores += 1
        nobody = SeqId(-self._num_restores)  # no request's, nor another restore's
        seq = Sequence(nobody, Request("", tokens, None), slot=slot, status=Status.ENDED)
        seq.num_computed = len(tokens)
        kept = self._keeping.pin_for_file(seq, len(tokens) // PAGE_CELLS, timeout_s)
        missing = [(i, host) for i, host in enumerate(kept.host_pages) if host.is_missing]

        def landed() -> None:
            self._keeping.found(kept)
            self._keeping.adopt(slot, kept)
            self._slots.note_last(slot, seq)

        return self._transfers.load(path, tokens, missing, landed, lambda: self._keeping.drop(kept))

    def erase(self, slot: SlotId) -> int:
        """Forget what `slot`'s last request left, but for what others hold; returns of how many
        tokens. Raises Conflict if the slot is not idle."""
        seq = self._idle(slot)
        self._keeping.forget(slot)
        num_erased = 0
        for index in range(len(self._parking.places_of_ended(seq))):
            num_erased += self._erase_page(seq, index)
        self._slots.note_last(slot, None)
        return num_erased * PAGE_CELLS

    def _erase_page(self, seq: Sequence, index: int) -> bool:
        page = self._parking.find(seq, index)
        if page is not None and self._transfers.num_sharing(page) > 0:
            return False
        if page is not None:
            self._pool.forget(page)
        return self._store.give_up(seq.name_of(index, self._parking.root)) or page is not None

    def _idle(self, slot: SlotId) -> Sequence:
        if self._slots.held[slot] is not None:
            raise Conflict(f"slot {slot} is not idle")
        seq = self._slots.last(slot)
        if seq is None:
            raise Conflict(f"slot {slot} is idle and holds nothing")
        return seq
