"""The pool: who holds which pages.

Knows page ids, reference counts and names; knows neither sequences nor bytes. A page is *free*,
*cached* (nobody holds it, but it has a name and may be found), or *referenced*.
Invariant: free + cached + referenced == all, and a name belongs to one page.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from kvalet.core.plan import PageId
from kvalet.core.sequence import PageName
from kvalet.errors import InvariantViolation


@dataclass(frozen=True, slots=True)
class _Label:
    name: PageName
    tokens: tuple[int, ...]


class PagePool:
    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._refs = [0] * num_pages
        self._free = deque(PageId(i) for i in range(num_pages))
        self._cached: dict[PageId, None] = {}
        self._turns = [0] * num_pages  # when each was last given up by somebody who used it
        self._next_turn = 1
        self._to_evict: list[tuple[int, PageId]] = []  # a heap; stale where turn or page disagree
        self._labels: dict[PageId, _Label] = {}
        self._by_name: dict[PageName, PageId] = {}
        self._freed: dict[PageId, None] = {}
        self._newly_cached: dict[PageId, None] = {}
        self._num_shared = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_clear(self) -> int:
        """Pages to be had: free, and cached ones that would be given up."""
        return len(self._free) + len(self._cached)

    @property
    def num_referenced(self) -> int:
        return self.num_pages - self.num_clear

    @property
    def num_shared(self) -> int:
        """Pages with more than one holder."""
        return self._num_shared

    def refs(self, page: PageId) -> int:
        return self._refs[page]

    def take(self) -> PageId:
        """A page of the caller's own, without a name; evicts the least recently used cached page
        when none is free. The caller has looked at `num_clear`."""
        if not self._free:
            self._evict()
        page = self._free.popleft()
        self._refs[page] = 1
        return page

    def hold(self, page: PageId) -> None:
        """One more holder of a cached or referenced page."""
        self._refs[page] += 1
        self._cached.pop(page, None)
        if self._refs[page] == 2:
            self._num_shared += 1

    def release(self, page: PageId) -> None:
        """One holder less; a page that nobody holds stays as cache if it has a name."""
        self._turns[page] = self._next_turn
        self._next_turn += 1
        self._let_go(page)
        if page in self._cached:
            self._newly_cached[page] = None

    def _let_go(self, page: PageId) -> None:
        if self._refs[page] == 0:
            raise InvariantViolation(f"page {page} is released but nobody holds it")
        self._refs[page] -= 1
        if self._refs[page] == 1:
            self._num_shared -= 1
        elif self._refs[page] == 0:
            if page in self._labels:
                self._cached[page] = None
                self._queue_for_eviction(page)
            else:
                self._to_free(page)

    def release_all(self, table: list[PageId]) -> None:
        """Release in reverse position order: of a chain nobody holds, the end is evicted first."""
        while table:
            self.release(table.pop())

    def give_back(self, table: list[PageId]) -> None:
        """Release without having used them: they make room when they would have anyway."""
        for page in table:
            self._let_go(page)

    def find(self, name: PageName, tokens: list[int]) -> PageId | None:
        """The page of that name. The ids are compared too: a hash is not a proof."""
        page = self._by_name.get(name)
        if page is None or self._labels[page].tokens != tuple(tokens):
            return None
        return page

    def publish(self, page: PageId, name: PageName, tokens: list[int]) -> PageId:
        """Name a full, computed page that the caller holds. Where the name exists already, the
        caller is given a hold on that page in exchange for its own."""
        other = self.find(name, tokens)
        if other is None:
            self._label(page, _Label(name, tokens=tuple(tokens)))
            return page
        if other != page:
            self.hold(other)
            self.release(page)
        return other

    def is_named(self, page: PageId) -> bool:
        return page in self._labels

    def has(self, name: PageName) -> bool:
        return name in self._by_name

    def cached_as(self, page: PageId) -> tuple[PageName, tuple[int, ...]] | None:
        """Name and token ids of a page, if nobody holds it."""
        label = self._labels[page] if page in self._cached else None
        return None if label is None else (label.name, label.tokens)

    def take_newly_cached(self) -> tuple[PageId, ...]:
        """Pages that were used and that nobody holds any more since the last call."""
        pages = tuple(self._newly_cached)
        self._newly_cached.clear()
        return pages

    def forget(self, page: PageId) -> None:
        """Take a page's name away; it can no longer be found."""
        label = self._labels.pop(page, None)
        if label is None:
            return
        del self._by_name[label.name]
        if page in self._cached:
            del self._cached[page]
            self._to_free(page)

    def take_freed(self) -> tuple[PageId, ...]:
        """Pages whose content became worthless since the last call."""
        freed = tuple(self._freed)
        self._freed.clear()
        return freed

    def check(self, holdings: Iterable[Iterable[PageId]]) -> None:
        """Raise InvariantViolation unless all adds up to exactly `holdings` (behaviour S3)."""
        held = Counter(page for pages in holdings for page in pages)
        for fault in self._faults(held):
            raise InvariantViolation(f"pool of {self.num_pages} pages: {fault}")

    def _faults(self, held: Counter[PageId]) -> Iterator[str]:
        for page, refs in enumerate(self._refs):
            if refs != held[PageId(page)]:
                yield f"page {page} counts {refs} holders, has {held[PageId(page)]}"
        if self.num_clear + len(held) != self.num_pages:
            yield f"{self.num_free} free + {self.num_cached} cached + {len(held)} referenced"
        if self._num_shared != sum(count > 1 for count in held.values()):
            yield f"{self._num_shared} shared pages counted"
        if {label.name: page for page, label in self._labels.items()} != self._by_name:
            yield "names and pages disagree"
        if any(self._refs[page] or page not in self._labels for page in self._cached):
            yield "a cached page is held or has no name"
        if self._cached.keys() - {
            entry[1] for entry in self._to_evict if not self._is_stale(entry)
        }:
            yield "a cached page can never be evicted"
        if any(self._refs[page] or page in self._labels for page in self._free):
            yield "a free page is held or has a name"

    def _label(self, page: PageId, label: _Label) -> None:
        self.forget(page)
        usurped = self._by_name.get(label.name)
        if usurped is not None:
            self.forget(usurped)
        self._labels[page] = label
        self._by_name[label.name] = page

    def _queue_for_eviction(self, page: PageId) -> None:
        heappush(self._to_evict, (self._turns[page], page))
        if len(self._to_evict) > 4 * self.num_pages:  # mostly stale
            self._to_evict = sorted((self._turns[cached], cached) for cached in self._cached)

    def _evict(self) -> None:
        while self._is_stale(self._to_evict[0]):
            heappop(self._to_evict)
        self.forget(self._to_evict[0][1])

    def _is_stale(self, entry: tuple[int, PageId]) -> bool:
        turn, page = entry
        return page not in self._cached or turn != self._turns[page]

    def _to_free(self, page: PageId) -> None:
        self._free.append(page)
        self._freed[page] = None
