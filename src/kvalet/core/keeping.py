"""What an idle slot's last request left, moved to the host store on request (SPEC P14).

For an agent between two tool calls: its pages leave the pool to others and stay pinned until they
are asked back, used by the next request, or their time is over.
"""

from collections.abc import Collection
from dataclasses import dataclass

from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import PAGE_CELLS, PageId, SlotId
from kvalet.core.sequence import Sequence
from kvalet.core.store import HostPage, HostStore
from kvalet.core.transfers import Transfers
from kvalet.errors import Conflict


@dataclass(slots=True)
class _Kept:
    seq: Sequence
    host_pages: list[HostPage]
    timeout_s: float
    until: float | None = None  # seconds; counted from the first plan that sees it


class Keeping:
    def __init__(
        self, pool: PagePool, store: HostStore, transfers: Transfers, parking: Parking
    ) -> None:
        self._pool = pool
        self._store = store
        self._transfers = transfers
        self._parking = parking
        self._kept: dict[SlotId, _Kept] = {}

    @property
    def slots(self) -> Collection[SlotId]:
        return self._kept.keys()

    def keep(self, slot: SlotId, seq: Sequence, timeout_s: float) -> None:
        """Move the named pages of ended `seq` to the store. Raises Conflict if there are none, if
        they are kept already, or if the budget does not hold them."""
        pages = self._pages_of(seq)
        if slot in self._kept or not pages:
            raise Conflict(f"slot {slot} is idle and has nothing to park")
        names = [seq.name_of(index, self._parking.root) for index in range(len(pages))]
        if not self._store.has_room_for([*names]):
            raise Conflict(f"the host memory budget does not hold slot {slot}'s pages")
        host_pages = [
            self._store.pin(name, seq.page_tokens(index)) for index, name in enumerate(names)
        ]
        self._kept[slot] = _Kept(seq, host_pages, timeout_s)
        self._transfers.copy_out(
            seq,
            zip(pages, host_pages, strict=True),
            lambda: self._clear(pages),
            lambda: self.forget(slot),
        )

    def bring_back(self, slot: SlotId) -> None:
        """Copy them back into the pool, as cache, as far as there is room."""
        kept = self._kept.get(slot)
        if kept is None:
            raise Conflict(f"slot {slot} is idle and nothing of it is parked")
        wanted = [
            (index, host)
            for index, host in enumerate(kept.host_pages)
            if host.is_landed and self._parking.find(kept.seq, index) is None
        ][: self._pool.num_clear]
        indexed = [(index, self._pool.take(), host) for index, host in wanted]
        if indexed:
            self._transfers.copy_in(
                kept.seq,
                [(page, host) for _, page, host in indexed],
                lambda: self._into_cache(kept.seq, [(i, page) for i, page, _ in indexed]),
                lambda: None,
            )
            self._pool.release_all([page for _, page, _ in indexed])
        self.forget(slot)

    def forget(self, slot: SlotId) -> None:
        kept = self._kept.pop(slot, None)
        for host in kept.host_pages if kept else ():
            self._store.unpin(host)

    def forget_used(self, now: float) -> None:
        """Let go of what a request has taken into the pool again, and of what is out of time."""
        for slot, kept in list(self._kept.items()):
            if kept.until is None:
                kept.until = now + kept.timeout_s
            is_used = any(host.is_used for host in kept.host_pages)
            if is_used or now >= kept.until:
                self.forget(slot)

    def _pages_of(self, seq: Sequence) -> list[PageId]:
        pages: list[PageId] = []
        for index in range(seq.num_computed // PAGE_CELLS):
            page = self._parking.find(seq, index)
            if page is None:
                break
            pages.append(page)
        return pages

    def _clear(self, pages: list[PageId]) -> None:
        """They are in the store: those that nobody uses leave the pool."""
        for page in pages:
            if self._pool.refs(page) <= 1:
                self._pool.forget(page)

    def _into_cache(self, seq: Sequence, copied: list[tuple[int, PageId]]) -> None:
        for index, page in copied:
            name = self._parking.name(seq, index)
            if name is not None and self._parking.find(seq, index) is None:
                self._pool.publish(page, name, seq.page_tokens(index))
