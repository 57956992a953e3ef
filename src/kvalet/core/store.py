"""The host store: which page-sized host buffers hold what, and for how many parked sequences.

Bookkeeping only; the bytes are the engine's. A page is known by its name, or by (sequence, index)
where it has none, so that two parked sequences with a common prefix keep it once. Parked
sequences and copies in flight pin pages; a buffer is reused once nobody pins it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from kvalet.core.plan import HostId, SeqId
from kvalet.core.sequence import PageName
from kvalet.errors import InvariantViolation

HostKey: TypeAlias = PageName | tuple[SeqId, int]


@dataclass(slots=True, eq=False)
class HostPage:
    key: HostKey
    host_id: HostId
    tokens: tuple[int, ...]
    pins: int = 0
    is_used: bool = False  # a sequence has taken it back
    is_landed: bool = False  # its copy out is complete


class HostStore:
    def __init__(self, budget_pages: int | None) -> None:
        self.budget_pages = budget_pages  # None: no limit
        self._by_key: dict[HostKey, HostPage] = {}
        self._spare: list[HostId] = []
        self._num_made = 0

    @property
    def num_held(self) -> int:
        """Buffers in use, each counted once however many pin it."""
        return self._num_made - len(self._spare)

    def has_room_for(self, keys: list[HostKey]) -> bool:
        """Whether all of `keys` can be pinned within the budget; those already here are free."""
        if self.budget_pages is None:
            return True
        missing = sum(key not in self._by_key for key in keys)
        return self.num_held + missing <= self.budget_pages

    def pin(self, key: HostKey, tokens: list[int]) -> HostPage:
        """Pin the page of `key`; with `pins == 1` it is new and has to be filled."""
        page = self._by_key.get(key)
        if page is None or page.tokens != tuple(tokens):
            page = self._by_key[key] = HostPage(key, self._spare_buffer(), tuple(tokens))
        page.pins += 1
        return page

    def find(self, name: PageName, tokens: list[int]) -> HostPage | None:
        """The complete page of that name; the ids are compared too: a hash is not a proof."""
        page = self._by_key.get(name)
        is_it = page is not None and page.is_landed and page.tokens == tuple(tokens)
        return page if is_it else None

    def pin_again(self, page: HostPage) -> None:
        page.pins += 1

    def unpin(self, page: HostPage) -> None:
        """One pin less; with the last one the buffer is given back."""
        if page.pins == 0:
            raise InvariantViolation(f"host page {page.host_id} is unpinned but nobody pins it")
        page.pins -= 1
        if page.pins == 0:
            self.lose(page)
            self._spare.append(page.host_id)

    def lose(self, page: HostPage) -> None:
        """Its content is not to be found any more; whoever pins it will replay instead."""
        page.is_landed = False
        if self._by_key.get(page.key) is page:
            del self._by_key[page.key]

    def _spare_buffer(self) -> HostId:
        if self._spare:
            return self._spare.pop()
        self._num_made += 1
        return HostId(self._num_made - 1)
