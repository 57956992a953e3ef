"""The host store: which places outside the pool hold which pages, and for whom.

Bookkeeping only; the bytes are the engine's. A page is known by its name, or by (sequence, index)
where it has none, so that two parked sequences with a common prefix keep it once. A page is
*pinned* by those who need it, *busy* while a copy reads or fills its place, and else *cached*: it
may be asked for again, and makes room for others, least recently used first.

What is pinned in RAM counts against one budget, what is not against another; what goes to disk is
always pinned, and is gone with its last pin.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from kvalet.core.plan import HostId, SeqId, Tier
from kvalet.core.sequence import PageName
from kvalet.errors import InvariantViolation

HostKey: TypeAlias = PageName | tuple[SeqId, int]


@dataclass(slots=True, eq=False)
class HostPage:
    key: HostKey
    host_id: HostId
    tokens: tuple[int, ...]
    num_pins: int = 0  # parked sequences and idle slots that need it
    num_copies: int = 0  # under way, into its place or out of it
    is_landed: bool = False  # its place holds it
    is_used: bool = False  # a sequence has taken it back

    @property
    def tier(self) -> Tier:
        return self.host_id.tier

    @property
    def is_missing(self) -> bool:
        """Whether somebody has to copy it here; nobody does yet."""
        return not self.is_landed and self.num_copies == 0


@dataclass(frozen=True, slots=True)
class HostBudget:
    """In pages; None: no limit."""

    parked: int | None = None  # RAM, pinned
    disk: int | None = 0
    cached: int | None = 0  # RAM, not pinned


class HostStore:
    def __init__(self, budget: HostBudget) -> None:
        self.budget = budget
        self._by_key: dict[HostKey, HostPage] = {}
        self._idle: dict[HostPage, None] = {}  # cached, least recently used first
        self._places = {tier: _Places(tier) for tier in Tier}
        self._num_pinned = 0  # in RAM
        self._freed: dict[HostId, None] = {}

    @property
    def num_held(self) -> int:
        """Pages in RAM, each counted once however many pin it."""
        return self._places[Tier.RAM].num_held

    @property
    def num_pinned(self) -> int:
        """Pages in RAM that somebody needs."""
        return self._num_pinned

    @property
    def num_cached(self) -> int:
        """Pages in RAM that nobody needs now."""
        return self.num_held - self._num_pinned

    @property
    def num_on_disk(self) -> int:
        return self._places[Tier.DISK].num_held

    @property
    def has_freed(self) -> bool:
        """Whether `take_freed` has anything to tell."""
        return bool(self._freed)

    def tier_for(self, keys: Iterable[HostKey]) -> Tier | None:
        """Where all of `keys` can be pinned within the budgets; those pinned already cost nothing,
        wherever they are. None: nowhere."""
        pages = [self._by_key.get(key) for key in keys]
        cost = sum(page is None or _is_unpinned_ram(page) for page in pages)
        if not cost or not _exceeds(self._num_pinned + cost, self.budget.parked):
            return Tier.RAM
        return None if _exceeds(self.num_on_disk + cost, self.budget.disk) else Tier.DISK

    def pin(self, key: HostKey, tokens: list[int], tier: Tier) -> HostPage:
        """Pin the page of `key`. One that is not here yet gets a place on `tier`; so does one that
        is merely cached, if `tier` is the disk because RAM has no room for it."""
        page = self._by_key.get(key)
        if page is not None and tier is Tier.DISK and _is_unpinned_ram(page):
            self.lose(page)
            page = None
        if page is None or page.tokens != tuple(tokens):
            page = self._new(key, tokens, tier)
        self._num_pinned += _is_unpinned_ram(page)
        page.num_pins += 1
        self._idle.pop(page, None)
        return page

    def unpin(self, page: HostPage) -> None:
        if page.num_pins == 0:
            raise InvariantViolation(f"host page {page.host_id} is unpinned but nobody pins it")
        page.num_pins -= 1
        self._num_pinned -= _is_unpinned_ram(page)
        self._settle(page)
        self._trim()

    def start_copy(self, page: HostPage) -> None:
        page.num_copies += 1
        self._idle.pop(page, None)

    def end_copy(self, page: HostPage) -> None:
        page.num_copies -= 1
        self._settle(page)

    def add_cached(self, name: PageName, tokens: list[int]) -> HostPage | None:
        """A place for a page that nobody needs yet, to be filled by the caller's copy at once;
        None where the budget has no room, or it is here."""
        if name in self._by_key or self.is_cache_full:
            return None
        return self._new(name, tokens, Tier.RAM)

    @property
    def is_cache_full(self) -> bool:
        return _exceeds(self.num_cached + 1, self.budget.cached)

    @property
    def oldest(self) -> HostPage | None:
        """The cached page that makes room first."""
        return next(iter(self._idle), None)

    def touch(self, page: HostPage) -> None:
        """As if a cached page had just been used."""
        del self._idle[page]
        self._idle[page] = None

    def note_used(self, name: PageName) -> None:
        """Somebody uses the page of that name, wherever it was found."""
        page = self._by_key.get(name)
        if page is not None:
            page.is_used = True

    def has(self, key: HostKey) -> bool:
        return key in self._by_key

    def is_cached(self, key: HostKey) -> bool:
        """Whether nobody pins the page of `key` that is here, in RAM."""
        page = self._by_key.get(key)
        return page is not None and _is_unpinned_ram(page)

    def rename(self, page: HostPage, name: PageName) -> None:
        """A complete page is found by `name` from now on, and no other is: one that is merely
        cached makes way, one in use goes when nobody needs it."""
        other = self._by_key.get(name)
        if other is page:
            return
        if other in self._idle:
            self._evict(other)
        del self._by_key[page.key]
        page.key = name
        self._by_key[name] = page

    def find(self, name: PageName, tokens: list[int]) -> HostPage | None:
        """The complete page of that name; the ids are compared too: a hash is not a proof."""
        page = self._by_key.get(name)
        is_it = page is not None and page.is_landed and page.tokens == tuple(tokens)
        return page if is_it else None

    def give_up(self, name: PageName) -> bool:
        """Forget the page of that name, unless somebody pins it; whether there was one."""
        page = self._by_key.get(name)
        if page is None or page.num_pins:
            return False
        self.lose(page)
        return True

    def lose(self, page: HostPage) -> None:
        """Its content is not to be found any more; whoever pins it will replay instead."""
        page.is_landed = False
        if self._by_key.get(page.key) is page:
            del self._by_key[page.key]
        self._settle(page)

    def take_freed(self) -> tuple[HostId, ...]:
        """Places whose content became worthless since the last call."""
        freed = tuple(self._freed)
        self._freed.clear()
        return freed

    def check(self, pinned: Iterable[HostPage], busy: Iterable[HostPage]) -> None:
        """Raise InvariantViolation unless each page is pinned and copied exactly as often as these
        say, and all counts add up (behaviour S3)."""
        pins, copies = Counter(pinned), Counter(busy)
        pages = {*pins, *copies, *self._by_key.values()}
        for fault in self._faults(pages, pins, copies):
            raise InvariantViolation(f"host store: {fault}")

    def _faults(
        self, pages: set[HostPage], pins: Counter[HostPage], copies: Counter[HostPage]
    ) -> Iterator[str]:
        for page in pages:
            if (page.num_pins, page.num_copies) != (pins[page], copies[page]):
                yield f"{page} is pinned {pins[page]} times and copied {copies[page]} times"
            is_idle = not page.num_pins and not page.num_copies
            if is_idle != (page in self._idle):
                yield f"{page} is cached and in use, or neither"
        if len({page.host_id for page in pages}) != len(pages):
            yield "two pages share a place"
        if self.num_held + self.num_on_disk != len(pages):
            yield f"{self.num_held} in RAM + {self.num_on_disk} on disk, but {len(pages)} pages"
        if self._num_pinned != sum(p.tier is Tier.RAM and p.num_pins > 0 for p in pages):
            yield f"{self._num_pinned} pages pinned in RAM are counted"
        if self._idle and _exceeds(self.num_cached, self.budget.cached):
            yield f"{self.num_cached} cached pages are over the budget"

    def _new(self, key: HostKey, tokens: list[int], tier: Tier) -> HostPage:
        place = self._places[tier].take()
        self._freed.pop(place, None)
        page = self._by_key[key] = HostPage(key, place, tuple(tokens))
        return page

    def _settle(self, page: HostPage) -> None:
        """Nobody needs it, nothing is copied: it stays as cache if it may be found, or goes."""
        if page.num_pins or page.num_copies:
            return
        is_findable = page.is_landed and not isinstance(page.key, tuple)
        if is_findable and page.tier is Tier.RAM and self._by_key.get(page.key) is page:
            self._idle[page] = None
            self._trim()
        else:
            self._evict(page)

    def _trim(self) -> None:
        """Keep to the budget of the cache, as far as no copy is in the way."""
        while self._idle and _exceeds(self.num_cached, self.budget.cached):
            self._evict(next(iter(self._idle)))

    def _evict(self, page: HostPage) -> None:
        """Give up a page that nobody pins or copies."""
        self._idle.pop(page, None)
        if self._by_key.get(page.key) is page:
            del self._by_key[page.key]
        self._places[page.tier].give_back(page.host_id)
        self._freed[page.host_id] = None


class _Places:
    """Ids of one tier, used again, the lowest first: then what lies high empties, and the engine
    can give its memory back."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._spare: list[int] = []  # a heap
        self._num_made = 0

    @property
    def num_held(self) -> int:
        return self._num_made - len(self._spare)

    def take(self) -> HostId:
        if self._spare:
            return HostId(heappop(self._spare), self._tier)
        self._num_made += 1
        return HostId(self._num_made - 1, self._tier)

    def give_back(self, place: HostId) -> None:
        heappush(self._spare, place.place)


def _exceeds(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit


def _is_unpinned_ram(page: HostPage) -> bool:
    return page.num_pins == 0 and page.tier is Tier.RAM
