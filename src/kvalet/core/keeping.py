"""What an idle slot's last request left, moved to the host store on request (SPEC P14).

For an agent between two tool calls: its pages leave the pool to others and stay pinned until they
are asked back, used by the next request, or their time is over. Then they are cache like any other.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import PageId, SlotId
from kvalet.core.sequence import Sequence
from kvalet.core.store import HostPage, HostStore
from kvalet.core.transfers import Transfers
from kvalet.errors import Conflict


@dataclass(slots=True, eq=False)
class Kept:
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
        self._kept: dict[SlotId, Kept] = {}
        self._pinning: dict[Kept, None] = {}  # those, and what is not complete yet

    @property
    def slots(self) -> Collection[SlotId]:
        return self._kept.keys()

    def keep(self, slot: SlotId, seq: Sequence, timeout_s: float) -> None:
        """Move the named pages of ended `seq` to the store. Raises Conflict if there are none, if
        they are kept already, or if the budget does not hold them."""
        pages = self._pages_of(seq)
        if slot in self._kept or not pages:
            raise Conflict(f"slot {slot} is idle and has nothing to park")
        kept = self._kept[slot] = self.pin(seq, len(pages), timeout_s)
        self._transfers.copy_out(
            seq,
            zip(pages, kept.host_pages, strict=True),
            lambda: self._copied_out(slot, kept, pages),
            lambda: self._let_go(slot, kept),
        )

    def pin(self, seq: Sequence, num_pages: int, timeout_s: float) -> Kept:
        """Places in the store for the first pages of ended `seq`. Raises Conflict if the budget
        does not hold them."""
        names = [seq.name_of(index, self._parking.root) for index in range(num_pages)]
        tier = self._store.tier_for(names)
        if tier is None:
            raise Conflict(f"the host memory budget does not hold {num_pages} pages more")
        hosts = [self._store.pin(name, seq.page_tokens(i), tier) for i, name in enumerate(names)]
        for host in hosts:
            host.is_used = False
        kept = Kept(seq, hosts, timeout_s)
        self._pinning[kept] = None
        return kept

    def adopt(self, slot: SlotId, kept: Kept) -> None:
        """What `kept` pins is from now on what `slot`'s last request left."""
        self.forget(slot)
        self._kept[slot] = kept

    def drop(self, kept: Kept) -> None:
        """In reverse: of a chain that becomes cache, the end makes room first."""
        del self._pinning[kept]
        for host in reversed(kept.host_pages):
            self._store.unpin(host)

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
        if kept is not None:
            self.drop(kept)

    def forget_used(self, now: float) -> None:
        """Let go of what a request has taken into the pool again, and of what is out of time."""
        for slot, kept in list(self._kept.items()):
            if kept.until is None:
                kept.until = now + kept.timeout_s
            is_used = any(host.is_used for host in kept.host_pages)
            if is_used or now >= kept.until:
                self.forget(slot)

    def pins(self) -> Iterator[HostPage]:
        """Pages of the host store that idle slots need."""
        for kept in self._pinning:
            yield from kept.host_pages

    def _pages_of(self, seq: Sequence) -> list[PageId]:
        """Its first pages that are in the pool."""
        places = self._parking.places_of_ended(seq)
        in_store = next((i for i, p in enumerate(places) if isinstance(p, HostPage)), len(places))
        return [place for place in places[:in_store] if not isinstance(place, HostPage)]

    def _copied_out(self, slot: SlotId, kept: Kept, pages: list[PageId]) -> None:
        """Those that are in the store and that nobody uses leave the pool; none of them does if
        they were asked back meanwhile."""
        if self._kept.get(slot) is not kept:
            return
        for index, (page, host) in enumerate(zip(pages, kept.host_pages, strict=True)):
            is_it = self._parking.find(kept.seq, index) == page
            if is_it and host.is_landed and self._transfers.num_sharing(page) == 0:
                self._pool.forget(page)

    def _let_go(self, slot: SlotId, kept: Kept) -> None:
        """Its copy failed: what it has is still in the pool."""
        if self._kept.get(slot) is kept:
            self.forget(slot)

    def _into_cache(self, seq: Sequence, copied: list[tuple[int, PageId]]) -> None:
        for index, page in copied:
            name = self._parking.name(seq, index)
            if name is not None and self._parking.find(seq, index) is None:
                self._pool.publish(page, name, seq.page_tokens(index))
