"""Copies ahead of need: what will probably leave the pool is put into the host store beforehand.

A full page never changes, so a copy made early is as good as one made in a hurry (SPEC A4): a park
then moves only what is new since, and a cached page that makes room for others is not lost. Done
only while the pool fills up, in small portions, and never in the way of a copy that somebody needs.
"""

from collections.abc import Iterator
from typing import Final

from kvalet.core import policy
from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import PAGE_CELLS, PageId
from kvalet.core.policy import VictimKey
from kvalet.core.sequence import RUNNING, PageName, Sequence
from kvalet.core.slots import Slots
from kvalet.core.store import HostPage, HostStore
from kvalet.core.transfers import Transfers

FREE_PERCENT: Final = 25  # of the pool; below it copies are made ahead
PORTION: Final = 8  # pages copied at once, about what a copier moves beside one step
NEXT_TO_GO: Final = 64  # cached pages looked at: those that make room first


class Mirroring:
    def __init__(
        self,
        slots: Slots,
        pool: PagePool,
        store: HostStore,
        transfers: Transfers,
        parking: Parking,
        victim_key: VictimKey,
    ) -> None:
        """`victim_key`: the likeliest victim has the smallest."""
        self._slots = slots
        self._pool = pool
        self._store = store
        self._transfers = transfers
        self._parking = parking
        self._victim_key = victim_key

    def run(self) -> None:
        """Start the next portion, if there is a use for it and no copy under way."""
        is_filling = 100 * self._pool.num_free < FREE_PERCENT * self._pool.num_pages
        if not is_filling or self._transfers.is_in_flight:
            return
        pairs: list[tuple[PageId, HostPage]] = []
        for page, name, tokens in self._candidates():
            if len(pairs) == PORTION or not self._has_room():
                break
            host = self._store.add_cached(name, list(tokens))
            if host is not None:
                pairs.append((page, host))
        if pairs:
            self._transfers.copy_ahead(pairs)

    def _candidates(self) -> Iterator[tuple[PageId, PageName, tuple[int, ...]]]:
        yield from self._pool.next_to_go(NEXT_TO_GO)
        residents = [seq for seq in self._slots.active() if seq.is_resident]
        leader = policy.leader(residents)
        able = [seq for seq in residents if seq is not leader and seq.status in RUNNING]
        for seq in sorted(able, key=self._victim_key):
            yield from self._pages_of(seq)

    def _pages_of(self, seq: Sequence) -> Iterator[tuple[PageId, PageName, tuple[int, ...]]]:
        """Those that are full, named, and not looked at before."""
        while seq.num_mirrored < seq.num_computed // PAGE_CELLS:
            index = seq.num_mirrored
            name = self._parking.name(seq, index)
            if name is not None and self._pool.is_named(seq.table[index]):
                yield seq.table[index], name, tuple(seq.page_tokens(index))
            seq.num_mirrored += 1

    def _has_room(self) -> bool:
        """Whether the cache takes one more page, without giving up one that mirrors the pool's:
        those would only take each other's place in turn."""
        if not self._store.is_cache_full:
            return True
        oldest = self._store.oldest
        if oldest is None or isinstance(oldest.key, tuple) or self._pool.has(oldest.key):
            return False
        self._store.lose(oldest)
        return not self._store.is_cache_full
