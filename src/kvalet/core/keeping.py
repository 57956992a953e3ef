"""What an idle slot's last request left, moved to the host store on request (behaviour P14).

For an agent between two tool calls: its pages leave the pool to others and stay pinned until they
are asked back, used by the next request, or their time is over. Then they are cache like any other.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking, Place
from kvalet.core.plan import PageId, SlotId, Tier
from kvalet.core.sequence import PageName, Sequence
from kvalet.core.store import HostKey, HostPage, HostStore
from kvalet.core.transfers import Transfers
from kvalet.errors import Conflict


@dataclass(slots=True, eq=False)
class Kept:
    seq: Sequence
    host_pages: list[HostPage]  # its first ones, in position order
    timeout_s: float
    until: float | None = None  # seconds; counted from the first plan that sees it

    @property
    def is_used(self) -> bool:
        """By a request that goes on with most of it; one that shares only its beginning is
        somebody else's."""
        num_used = sum(host.is_used for host in self.host_pages)
        return 2 * num_used > len(self.host_pages) or not self.host_pages


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

    def pages(self, slot: SlotId) -> tuple[HostPage, ...]:
        """What is pinned of `slot`'s last request, in position order."""
        kept = self._kept.get(slot)
        return () if kept is None else tuple(kept.host_pages)

    def keep(self, slot: SlotId, seq: Sequence, timeout_s: float) -> None:
        """Move the named pages of ended `seq` to the store. Raises Conflict if there are none, if
        they are kept already, or if the budget does not hold them."""
        before = self._kept.get(slot)
        places = self._parking.places_of_ended(seq)
        if not places or (before is not None and before.seq is seq):
            raise Conflict(f"slot {slot} is idle and has nothing to park")
        names = self._names(seq, len(places))
        tier = self._tier_for(names)
        places = _to_pin(places, tier)
        kept = self._pin(seq, names[: len(places)], tier, timeout_s)
        self.adopt(slot, kept)
        pairs = [
            (place, host)
            for place, host in zip(places, kept.host_pages, strict=True)
            if not isinstance(place, HostPage)
        ]
        self._transfers.copy_out(
            seq,
            pairs,
            lambda: self._copied_out(slot, kept),
            lambda: self._give_up(slot, kept),
        )

    def pin_for_file(self, seq: Sequence, num_pages: int, timeout_s: float) -> Kept:
        """Places for the first pages of `seq`, an id of its own, to be read from a file. What the
        store has is taken as it is; the others are nobody's to find or to count on before they are
        `found`, and nothing cached makes way for them: the file is late, and may be broken. Raises
        Conflict if the budget does not hold them."""
        keys: list[HostKey] = []
        for index, name in enumerate(self._names(seq, num_pages)):
            is_here = self._store.find(name, seq.page_tokens(index)) is not None
            keys.append(name if is_here else (seq.seq_id, index))
        tier = self._tier_for(keys)
        if tier is Tier.DISK:  # where a page that is merely cached in RAM would move
            keys = [
                (seq.seq_id, index) if self._store.is_cached(key) else key
                for index, key in enumerate(keys)
            ]
        return self._pin(seq, keys, tier, timeout_s)

    def found(self, kept: Kept) -> None:
        """The file held what it said: its pages may be found by name from now on."""
        for host, name in zip(
            kept.host_pages, self._names(kept.seq, len(kept.host_pages)), strict=True
        ):
            self._store.rename(host, name)

    def _names(self, seq: Sequence, num_pages: int) -> list[PageName]:
        return [seq.name_of(index, self._parking.root) for index in range(num_pages)]

    def _pin(self, seq: Sequence, keys: Iterable[HostKey], tier: Tier, timeout_s: float) -> Kept:
        kept = Kept(seq, [], timeout_s)
        self._pinning[kept] = None
        for index, key in enumerate(keys):
            kept.host_pages.append(self._store.pin(key, seq.page_tokens(index), tier))
        for host in kept.host_pages:
            host.is_used = False
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
        found = [self._parking.find(kept.seq, index) for index in range(len(kept.host_pages))]
        there = [page for page in found if page is not None]
        for page in there:  # held: taking pages evicts cached ones
            self._pool.hold(page)
        wanted = [
            (index, host)
            for index, host in enumerate(kept.host_pages)
            if host.is_landed and found[index] is None
        ][: self._pool.num_clear]
        copied = [(index, self._pool.take(), host) for index, host in wanted]
        if copied:
            self._transfers.copy_in(
                kept.seq,
                [(page, host) for _, page, host in copied],
                lambda: self._into_cache(kept.seq, copied),
                lambda: None,
            )
        self._pool.release_all([*there, *(page for _, page, _ in copied)])
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
            if kept.is_used or now >= kept.until:
                self.forget(slot)

    def pins(self) -> Iterator[HostPage]:
        """Pages of the host store that idle slots need."""
        for kept in self._pinning:
            yield from kept.host_pages

    def _tier_for(self, keys: Collection[HostKey]) -> Tier:
        """Raises Conflict."""
        tier = self._store.tier_for(keys)
        if tier is None:
            raise Conflict(f"the host memory budget does not hold {len(keys)} pages more")
        return tier

    def _copied_out(self, slot: SlotId, kept: Kept) -> None:
        """Those that are in the store and that nobody uses leave the pool; none of them does if
        they were asked back meanwhile."""
        if self._kept.get(slot) is not kept:
            return
        for index, host in enumerate(kept.host_pages):
            page = self._parking.find(kept.seq, index)
            if page is not None and host.is_landed and not self._transfers.num_sharing(page):
                self._pool.forget(page)

    def _give_up(self, slot: SlotId, kept: Kept) -> None:
        """Its copy failed: what it has is still in the pool."""
        if self._kept.get(slot) is kept:
            self.forget(slot)

    def _into_cache(self, seq: Sequence, copied: list[tuple[int, PageId, HostPage]]) -> None:
        """What was erased meanwhile is not to be found again."""
        for index, page, host in copied:
            name = self._parking.name(seq, index)
            if name is not None and host.is_landed and self._parking.find(seq, index) is None:
                self._pool.publish(page, name, seq.page_tokens(index))


def _to_pin(places: list[Place], tier: Tier) -> list[Place]:
    """What RAM has and the pool has not cannot be copied to disk: the chain ends there."""
    if tier is Tier.RAM:
        return places
    end = next(
        (i for i, p in enumerate(places) if isinstance(p, HostPage) and p.tier is Tier.RAM),
        len(places),
    )
    return places[:end]
