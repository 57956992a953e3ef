"""Copies ahead of need: what will probably leave the pool is put into the host store beforehand.

A full page never changes, so a copy made early is as good as one made in a hurry (behaviour A4).
What nobody holds any more is copied soon, since a long prompt may want its room in a single step;
what running chats hold, while the pool fills up, so that a park moves only what is new since. All
of it in small portions, and never in the way of a copy that somebody needs.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from kvalet.core import policy
from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import PAGE_CELLS, PageId
from kvalet.core.policy import VictimKey
from kvalet.core.sequence import RUNNING, PageName, Sequence
from kvalet.core.slots import Slots
from kvalet.core.store import HostStore
from kvalet.core.transfers import Pair, Transfers

CLEAR_PERCENT: Final = 25  # of the pool; below it the pages of running chats are copied ahead
PORTION: Final = 8  # pages copied at once, about what a copier moves beside one step
LOOKS: Final = 64  # at cached pages of the host store, for one that may make room

Page: TypeAlias = tuple[PageId, PageName, tuple[int, ...]]


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
        self._left_behind: dict[PageId, None] = {}  # that nobody holds, not looked at yet

    @property
    def is_due(self) -> bool:
        """Whether there is something to look at although nobody computes."""
        self._collect()
        return bool(self._left_behind)

    def run(self) -> None:
        """Start the next portion, if there is a use for it and no copy under way."""
        self._collect()
        if self._transfers.is_in_flight:
            return
        pairs: list[Pair] = []
        try:
            self._choose(pairs)
            if pairs:
                self._transfers.copy_ahead(pairs)
        except Exception:
            for _, host in pairs:
                self._store.lose(host)
            raise

    def _collect(self) -> None:
        self._left_behind.update(dict.fromkeys(self._pool.take_newly_cached()))

    def _choose(self, pairs: list[Pair]) -> None:
        """Pages, with the places that they are to be copied to."""
        candidates = self._candidates()
        while len(pairs) < PORTION:
            page, name, tokens = next(candidates, (None, None, ()))
            if page is None or name is None:
                return
            if self._store.has(name):
                continue
            if not self._make_room():
                return
            host = self._store.add_cached(name, list(tokens))
            if host is not None:
                pairs.append((page, host))

    def _candidates(self) -> Iterator[Page]:
        """Each is given once: one that there is no room for, or that is copied in vain, is not
        tried again."""
        while self._left_behind:
            page = next(iter(self._left_behind))
            del self._left_behind[page]
            cached = self._pool.cached_as(page)
            if cached is not None:
                yield (page, *cached)
        if 100 * self._pool.num_clear < CLEAR_PERCENT * self._pool.num_pages:
            yield from self._likely_victims()

    def _likely_victims(self) -> Iterator[Page]:
        residents = [seq for seq in self._slots.active() if seq.is_resident]
        leader = policy.leader(residents)
        able = [seq for seq in residents if seq is not leader and seq.status in RUNNING]
        for seq in sorted(able, key=self._victim_key):
            yield from self._pages_of(seq)

    def _pages_of(self, seq: Sequence) -> Iterator[Page]:
        """Those that are full, named, and not looked at before."""
        while seq.num_mirrored < seq.num_computed // PAGE_CELLS:
            index = seq.num_mirrored
            seq.num_mirrored += 1
            name = self._parking.name(seq, index)
            if name is not None and self._pool.is_named(seq.table[index]):
                yield seq.table[index], name, tuple(seq.page_tokens(index))

    def _make_room(self) -> bool:
        """For one more page in the cache, without giving up one that mirrors the pool's: those
        would only take each other's place in turn."""
        for _ in range(LOOKS):
            oldest = self._store.oldest
            if not self._store.is_cache_full:
                return True
            if oldest is None:
                return False
            if isinstance(oldest.key, bytes) and self._pool.has(PageName(oldest.key)):
                self._store.touch(oldest)
            else:
                self._store.lose(oldest)
        return False
