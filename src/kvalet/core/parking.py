"""How a sequence leaves the pool and comes into it: one path for every reason and both modes.

Parking makes sure that every page of the victim's table is in the host store, then drops the
references; without room there, it only drops them and the tokens are computed again later.
Whoever comes in, new or parked, takes each page where it is: in the pool by name, else in the
host store, else from its tokens.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from kvalet.core.pages import PagePool
from kvalet.core.plan import PAGE_CELLS, PageId, SeqId, Tier, pages_for
from kvalet.core.room import Entry
from kvalet.core.sequence import Move, PageName, Sequence, Status
from kvalet.core.store import HostKey, HostPage, HostStore
from kvalet.core.transfers import Transfers

COPY_TRIES = 3

Place: TypeAlias = PageId | HostPage


class Parking:
    def __init__(self, pool: PagePool, store: HostStore, transfers: Transfers, root: bytes) -> None:
        self._pool = pool
        self._store = store
        self._transfers = transfers
        self.root = root
        self._left: dict[SeqId, list[HostPage]] = {}  # what each parked sequence left in the store
        self._num_failed: Counter[SeqId] = Counter()  # copies, since it last came in

    def tier_for(self, seq: Sequence) -> Tier | None:
        """Where the host store has room for all that `seq` holds; None: nowhere, or it holds
        nothing."""
        return self._store.tier_for(self._keys(seq)) if seq.table else None

    def forget_private_names(self, seq: Sequence) -> None:
        """So that every byte of a forced park has to come back from the store or a replay."""
        for index, page in enumerate(seq.table):
            if self._transfers.num_sharing(page) == 1 and self._pool.is_named(page):
                self._store.give_up(seq.name_of(index, self.root))
                self._pool.forget(page)

    def swap_out(self, seq: Sequence, tier: Tier) -> int:
        """Park by copying; returns the pages to copy, 0 where the store has all already."""
        host_pages = self._left[seq.seq_id] = []
        for index, key in enumerate(self._keys(seq)):
            host_pages.append(self._store.pin(key, seq.page_tokens(index), tier))
        seq.move(Move.PARK)
        return self._transfers.copy_out(
            seq,
            zip(seq.table, host_pages, strict=True),
            lambda: self._copied_out(seq),
            lambda: self._copy_out_failed(seq),
        )

    def drop(self, seq: Sequence) -> None:
        """Park without a copy: what is not found by name later is computed again."""
        self._left[seq.seq_id] = []
        seq.move(Move.DROP)
        self._pool.release_all(seq.table)

    def can_restore(self, seq: Sequence) -> bool:
        """Whether `seq` can go on: all of its state is to be had, or can be computed again."""
        return seq.can_replay or self.entry(seq).num_to_compute <= seq.num_pending

    def has_failed(self, seq: Sequence) -> bool:
        """Whether a copy of its failed since it last came in or got out."""
        return self._num_failed[seq.seq_id] > 0

    def is_failing(self, seq: Sequence) -> bool:
        """Whether it is in doubt that `seq`, which is parked, comes in again."""
        return self.has_failed(seq) or not self.can_restore(seq)

    def entry(self, seq: Sequence) -> Entry:
        """What bringing `seq` in would take."""
        places = self._locate(seq)
        num_cells = self._cells_in(seq, places)
        num_host = sum(isinstance(place, HostPage) for place in places)
        shared = sum(not isinstance(p, HostPage) and self._pool.refs(p) > 0 for p in places)
        return Entry(
            fresh=pages_for(len(seq.tokens)) - shared,
            num_to_compute=len(seq.tokens) - num_cells,
            is_resume=seq.status is Status.PREEMPTED,
            num_to_replay=max(0, seq.num_computed - num_cells),
            num_pool=len(places) - num_host,
            num_host=num_host,
        )

    def bring_in(self, seq: Sequence) -> None:
        """Let `seq` into the pool, new or parked. Where no copy is needed it takes part at once.
        The entry gate has seen that there is room."""
        places = self._locate(seq)
        before = seq.num_computed
        seq.num_mirrored = 0
        seq.num_computed = self._cells_in(seq, places)
        if seq.status is Status.STARTED:
            seq.num_cached = seq.num_computed
        is_new = seq.status is Status.STARTED
        seq.replay_until = max(seq.replay_until, before)
        for index, place in enumerate(places):
            if not isinstance(place, HostPage):
                self._store.note_used(seq.name_of(index, self.root))
        for place in places:  # held first: taking fresh pages evicts cached ones
            if not isinstance(place, HostPage):
                self._pool.hold(place)
                seq.table.append(place)
        for index, place in enumerate(places):
            if isinstance(place, HostPage):
                seq.table.insert(index, self._pool.take())
        pairs = zip(seq.table, places, strict=True)
        copies = [(page, place) for page, place in pairs if isinstance(place, HostPage)]
        if not copies:
            self._take_part(seq)
            return
        for _, host in copies:
            host.is_used = True
        seq.move(Move.RESTORE)
        self._transfers.copy_in(
            seq,
            copies,
            lambda: self._copied_in(seq, [page for page, _ in copies]),
            lambda: self._copy_in_failed(seq, before, is_new),
        )

    def take_named(self, seq: Sequence) -> None:
        """At a page boundary, take the next pages of the known tokens by name."""
        while seq.num_computed % PAGE_CELLS == 0 and len(seq.table) < seq.max_named:
            page = self.find(seq, len(seq.table))
            if page is None:
                return
            self._pool.hold(page)
            seq.table.append(page)
            seq.num_computed += PAGE_CELLS
            if not seq.num_generated and seq.num_computed > seq.replay_until:
                seq.num_cached += PAGE_CELLS

    def publish(self, seq: Sequence, index: int) -> None:
        """Name its page `index`, which is full and computed; it may become another page."""
        name = self.name(seq, index)
        if name is not None:
            seq.table[index] = self._pool.publish(seq.table[index], name, seq.page_tokens(index))

    def name(self, seq: Sequence, index: int) -> PageName | None:
        """Name of its full page `index`; None where it neither takes nor leaves names."""
        is_beyond = seq.name_limit is not None and index >= seq.name_limit
        return seq.name_of(index, self.root) if seq.request.cache_prompt and not is_beyond else None

    def find(self, seq: Sequence, index: int) -> PageId | None:
        """The pool's page of that name."""
        name = self.name(seq, index)
        if name is None or not self._pool.has(name):  # the usual case, every step of a wait
            return None
        return self._pool.find(name, seq.page_tokens(index))

    def places_of_ended(self, seq: Sequence) -> list[Place]:
        """Where the first pages of what an ended sequence had computed still are."""
        places: list[Place] = []
        for index in range(seq.num_computed // PAGE_CELLS):
            page = self.find(seq, index)
            place = self._find_in_store(seq, index) if page is None else page
            if place is None:
                break
            places.append(place)
        return places

    def num_in_host(self, seq: Sequence) -> int:
        """Pages of `seq`'s in the host store: what it left there, or what was copied ahead."""
        left = self._left.get(seq.seq_id)
        if left is not None:
            return sum(host.is_landed for host in left)
        names = (self.name(seq, index) for index in range(seq.num_computed // PAGE_CELLS))
        return sum(name is not None and self._store.has(name) for name in names)

    def end(self, seq: Sequence) -> None:
        """Whatever its state: gives back its pages and pins. Copies in flight keep their own."""
        self._pool.release_all(seq.table)
        self._unpin_left(seq)
        self._num_failed.pop(seq.seq_id, None)

    def pins(self) -> Iterator[HostPage]:
        """Pages of the host store that parked sequences need."""
        for host_pages in self._left.values():
            yield from host_pages

    def _keys(self, seq: Sequence) -> list[HostKey]:
        return [
            seq.name_of(index, self.root) if self._pool.is_named(page) else (seq.seq_id, index)
            for index, page in enumerate(seq.table)
        ]

    def _locate(self, seq: Sequence) -> list[Place]:
        """Where its pages are, in position order, up to the first that is nowhere."""
        left = self._left.get(seq.seq_id, [])
        places: list[Place] = []
        for index in range(max(len(left), self._cells_had(seq) // PAGE_CELLS)):
            place = self._place(seq, index, left)
            if place is None:
                break
            places.append(place)
        return places

    def _place(self, seq: Sequence, index: int, left: list[HostPage]) -> Place | None:
        is_named = index < seq.max_named
        page = self.find(seq, index) if is_named else None
        if page is not None:
            return page
        if index < len(left) and left[index].is_landed:
            return left[index]
        return self._find_in_store(seq, index) if is_named else None

    def _find_in_store(self, seq: Sequence, index: int) -> HostPage | None:
        name = self.name(seq, index)
        if name is None or not self._store.has(name) or self._is_store_broken(seq):
            return None
        return self._store.find(name, seq.page_tokens(index))

    def _is_store_broken(self, seq: Sequence) -> bool:
        """For one that could not be copied in often enough, and can be computed instead."""
        return seq.can_replay and self._num_failed[seq.seq_id] >= COPY_TRIES

    def _cells_had(self, seq: Sequence) -> int:
        """Cells a parked sequence had computed; for a new one, those it may find by name."""
        if seq.status is Status.PREEMPTED:
            return seq.num_computed
        return seq.max_named * PAGE_CELLS

    def _cells_in(self, seq: Sequence, places: list[Place]) -> int:
        return min(len(places) * PAGE_CELLS, self._cells_had(seq))

    def _copied_out(self, seq: Sequence) -> None:
        """Its copy has landed, and so have those of others that it counted on, or they failed."""
        if seq.status is not Status.PREEMPTING:
            return
        if all(host.is_landed for host in self._left[seq.seq_id]):
            self._num_failed.pop(seq.seq_id, None)
            self._leave(seq)
        else:
            self._copy_out_failed(seq)

    def _leave(self, seq: Sequence) -> None:
        self._pool.release_all(seq.table)
        seq.move(Move.PARKED)

    def _copy_out_failed(self, seq: Sequence) -> None:
        """One that cannot be replayed goes on with the pages it still holds; but not for ever,
        since somebody needs the room."""
        if seq.status is not Status.PREEMPTING:
            return
        self._num_failed[seq.seq_id] += 1
        if seq.can_replay or self._num_failed[seq.seq_id] >= COPY_TRIES:
            self._unpin_lost(seq)
            self._leave(seq)
        else:
            self._unpin_left(seq)
            seq.move(Move.PARK_FAILED)

    def _copied_in(self, seq: Sequence, copied: list[PageId]) -> None:
        """Its copy in has landed: its pages may be found by name from now on."""
        if seq.status is Status.RESTORING:
            new = set(copied)
            for index in range(seq.num_computed // PAGE_CELLS):
                if seq.table[index] in new:
                    self.publish(seq, index)
            self._take_part(seq)

    def _copy_in_failed(self, seq: Sequence, num_computed: int, is_new: bool) -> None:
        """It keeps its place, is tried again, then replayed if it can be (behaviour P17)."""
        if seq.status is not Status.RESTORING:
            return
        self._pool.release_all(seq.table)
        seq.num_computed = num_computed
        if is_new:
            seq.num_cached = 0
        seq.move(Move.RESTORE_FAILED)
        self._num_failed[seq.seq_id] += 1
        if self._num_failed[seq.seq_id] >= COPY_TRIES and seq.can_replay:
            self._unpin_left(seq)

    def _take_part(self, seq: Sequence) -> None:
        self._unpin_left(seq)
        self._num_failed.pop(seq.seq_id, None)
        seq.failing_since = None
        if seq.num_computed < seq.replay_until:
            seq.move(Move.TO_REPLAY)
        else:
            seq.move(Move.TO_DECODE if seq.num_generated else Move.TO_PREFILL)

    def _unpin_lost(self, seq: Sequence) -> None:
        """From the first page on that did not get into the store: the rest is of no use."""
        left = self._left[seq.seq_id]
        num_kept = next((i for i, host in enumerate(left) if not host.is_landed), len(left))
        for host in reversed(left[num_kept:]):
            self._store.unpin(host)
        del left[num_kept:]

    def _unpin_left(self, seq: Sequence) -> None:
        """In reverse: of a chain that becomes cache, the end makes room first."""
        for host in reversed(self._left.pop(seq.seq_id, [])):
            self._store.unpin(host)
