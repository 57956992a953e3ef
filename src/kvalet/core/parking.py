"""How a sequence leaves the pool and comes back: one path for every reason and both modes.

Parking makes sure that every page of the victim's table is in the host store, then drops the
references; without room there, it only drops them and the tokens are computed again later.
Resuming takes each page where it is: in the pool by name, else in the host store, else from its
tokens. A copy in flight holds its pages and pins its buffers until it has landed, whatever
becomes of the sequence meanwhile.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kvalet.core.pages import PagePool
from kvalet.core.plan import PAGE_CELLS, Direction, PageId, SeqId, Transfer, TransferId, pages_for
from kvalet.core.room import Entry
from kvalet.core.sequence import Move, PageName, Sequence, Status
from kvalet.core.store import HostKey, HostPage, HostStore

RESTORE_TRIES = 3

Place: TypeAlias = PageId | HostPage


@dataclass(slots=True)
class _InFlight:
    seq: Sequence
    transfer: Transfer
    host_pages: list[HostPage]
    num_computed_before: int


class Parking:
    def __init__(self, pool: PagePool, store: HostStore, root: bytes) -> None:
        self._pool = pool
        self._store = store
        self._root = root
        self._left: dict[SeqId, list[HostPage]] = {}  # what each parked sequence left in the store
        self._in_flight: dict[TransferId, _InFlight] = {}
        self._num_failed: Counter[SeqId] = Counter()
        self._next_id = 0

    @property
    def is_in_flight(self) -> bool:
        return bool(self._in_flight)

    def can_swap(self, seq: Sequence) -> bool:
        """Whether `seq` holds anything and the host store has room for all of it."""
        return bool(seq.table) and self._store.has_room_for(self._keys(seq))

    def forget_private_names(self, seq: Sequence) -> None:
        """So that every byte of a forced park has to come back from the store or a replay."""
        for page in seq.table:
            if self._pool.refs(page) == 1:
                self._pool.forget(page)

    def swap_out(self, seq: Sequence) -> Transfer | None:
        """Park by copying; None where the store has every page already."""
        host_pages = [self._store.pin(key) for key in self._keys(seq)]
        self._left[seq.seq_id] = host_pages
        seq.move(Move.PARK)
        new = [
            (page, host) for page, host in zip(seq.table, host_pages, strict=True) if host.pins == 1
        ]
        if not new:
            self._leave(seq)
            return None
        return self._start(seq, Direction.OUT, new)

    def drop(self, seq: Sequence) -> None:
        """Park without a copy: what is not found by name later is computed again."""
        self._left[seq.seq_id] = []
        seq.move(Move.DROP)
        self._pool.release_all(seq.table)

    def can_restore(self, seq: Sequence) -> bool:
        """Whether `seq` can go on: all of its state is to be had, or can be computed again."""
        return seq.can_replay or self.entry(seq).num_to_compute <= seq.num_pending

    def has_failed(self, seq: Sequence) -> bool:
        """Whether a copy of its state failed since it was parked."""
        return self._num_failed[seq.seq_id] > 0

    def entry(self, seq: Sequence) -> Entry:
        places = self._locate(seq)
        shared = sum(not isinstance(p, HostPage) and self._pool.refs(p) > 0 for p in places)
        covered = min(len(places) * PAGE_CELLS, self._cells_had(seq))
        return Entry(
            fresh=pages_for(len(seq.tokens)) - shared,
            num_to_compute=len(seq.tokens) - covered,
            is_resume=seq.status is Status.PREEMPTED,
        )

    def admit(self, seq: Sequence) -> None:
        """First admission: takes what is found by name."""
        seq.move(Move.ADMIT)
        self.take_named(seq)

    def take_named(self, seq: Sequence) -> None:
        """At a page boundary, take the next pages of the known tokens by name; the last token is
        always left to compute, for its logits (SPEC S4)."""
        while seq.num_computed % PAGE_CELLS == 0 and len(seq.table) < _max_named(seq):
            page = self._find(seq, len(seq.table))
            if page is None:
                return
            self._pool.hold(page)
            seq.table.append(page)
            seq.num_computed += PAGE_CELLS
            if not seq.num_generated and seq.num_computed > seq.replay_until:
                seq.num_cached += PAGE_CELLS

    def resume(self, seq: Sequence) -> Transfer | None:
        """Bring `seq` back; None where no copy is needed and it takes part at once."""
        places = self._locate(seq)
        before = seq.num_computed
        for place in places:  # held first: taking fresh pages evicts cached ones
            if not isinstance(place, HostPage):
                self._pool.hold(place)
        seq.table = [self._pool.take() if isinstance(p, HostPage) else p for p in places]
        seq.replay_until = max(seq.replay_until, before)
        seq.num_computed = min(before, len(places) * PAGE_CELLS)
        copies = [
            (page, p) for page, p in zip(seq.table, places, strict=True) if isinstance(p, HostPage)
        ]
        if not copies:
            self._reenter(seq)
            return None
        seq.move(Move.RESTORE)
        return self._start(seq, Direction.IN, copies, before)

    def end(self, seq: Sequence) -> None:
        """Whatever its state: gives back its pages and pins. Copies in flight keep their own."""
        self._pool.release_all(seq.table)
        self._unpin_left(seq)
        self._num_failed.pop(seq.seq_id, None)

    def land(self, transfer_id: TransferId) -> Sequence:
        """A copy is complete. Returns its sequence, which may have ended meanwhile."""
        flight = self._in_flight.pop(transfer_id)
        seq = flight.seq
        for host in flight.host_pages:
            host.is_landed = True
        if seq.status is Status.PREEMPTING:
            self._leave(seq)
        elif seq.status is Status.RESTORING:
            self._publish_restored(flight)
            self._reenter(seq)
        self._let_go(flight)
        return seq

    def fail(self, transfer_id: TransferId) -> Sequence:
        """A copy failed: what did not get out will be replayed; what did not get in is tried again,
        then replayed (SPEC P17). Returns its sequence, which may have ended meanwhile."""
        flight = self._in_flight.pop(transfer_id)
        seq = flight.seq
        if flight.transfer.direction is Direction.OUT:
            for host in flight.host_pages:
                self._store.lose(host)
        if seq.status is Status.PREEMPTING:
            self._leave(seq)
            self._num_failed[seq.seq_id] += 1
        elif seq.status is Status.RESTORING:
            self._pool.release_all(seq.table)
            seq.num_computed = flight.num_computed_before
            seq.move(Move.RESTORE_FAILED)
            self._count_failed_restore(seq)
        self._let_go(flight)
        return seq

    def num_leaving(self, sequences: Iterable[Sequence]) -> int:
        """Pages all of whose holders are on their way out."""
        if not self._in_flight:
            return 0
        leaving = Counter(p for s in sequences if s.status is Status.PREEMPTING for p in s.table)
        for flight in self._in_flight.values():
            if flight.seq.status in (Status.PREEMPTING, Status.ENDED):
                leaving.update(page for page, _ in flight.transfer.moves)
        return sum(self._pool.refs(page) == holders for page, holders in leaving.items())

    def holdings(self) -> Iterator[list[PageId]]:
        """Pages that copies in flight hold."""
        for flight in self._in_flight.values():
            yield [page for page, _ in flight.transfer.moves]

    def has_left_pages(self, seq: Sequence) -> bool:
        """Whether any byte of parked `seq` has to come back from the store."""
        return bool(self._left.get(seq.seq_id))

    def _keys(self, seq: Sequence) -> list[HostKey]:
        return [
            seq.name_of(index, self._root) if self._pool.is_named(page) else (seq.seq_id, index)
            for index, page in enumerate(seq.table)
        ]

    def _locate(self, seq: Sequence) -> list[Place]:
        """Where its pages are, in position order, up to the first that is nowhere."""
        left = self._left.get(seq.seq_id, [])
        places: list[Place] = []
        for index in range(max(len(left), self._cells_had(seq) // PAGE_CELLS)):
            place = self._find(seq, index) if index < _max_named(seq) else None
            if place is None and index < len(left) and left[index].is_landed:
                places.append(left[index])
            elif place is None:
                break
            else:
                places.append(place)
        return places

    def _cells_had(self, seq: Sequence) -> int:
        """Cells a parked sequence had computed; for a new one, those it may find by name."""
        if seq.status is Status.PREEMPTED:
            return seq.num_computed
        return _max_named(seq) * PAGE_CELLS

    def name(self, seq: Sequence, index: int) -> PageName | None:
        """Name of its full page `index`; None where it neither takes nor leaves names."""
        is_beyond = seq.name_limit is not None and index >= seq.name_limit
        return seq.name_of(index, self._root) if seq.cache_prompt and not is_beyond else None

    def _find(self, seq: Sequence, index: int) -> PageId | None:
        name = self.name(seq, index)
        return None if name is None else self._pool.find(name, seq.page_tokens(index))

    def _start(
        self,
        seq: Sequence,
        direction: Direction,
        copies: list[tuple[PageId, HostPage]],
        num_computed_before: int = 0,
    ) -> Transfer:
        for page, host in copies:
            self._pool.hold(page)
            self._store.pin_again(host)
        transfer = Transfer(
            TransferId(self._next_id),
            seq.seq_id,
            direction,
            tuple((page, host.host_id) for page, host in copies),
        )
        self._next_id += 1
        host_pages = [host for _, host in copies]
        self._in_flight[transfer.transfer_id] = _InFlight(
            seq, transfer, host_pages, num_computed_before
        )
        return transfer

    def _let_go(self, flight: _InFlight) -> None:
        self._pool.release_all([page for page, _ in flight.transfer.moves])
        for host in flight.host_pages:
            self._store.unpin(host)

    def _leave(self, seq: Sequence) -> None:
        self._pool.release_all(seq.table)
        seq.move(Move.PARKED)

    def _publish_restored(self, flight: _InFlight) -> None:
        seq = flight.seq
        copied = {page for page, _ in flight.transfer.moves}
        for index in range(seq.num_computed // PAGE_CELLS):
            if seq.table[index] in copied:
                self.publish(seq, index)

    def publish(self, seq: Sequence, index: int) -> None:
        """Name its page `index`, which is full and computed; it may become another page."""
        name = self.name(seq, index)
        if name is not None:
            seq.table[index] = self._pool.publish(seq.table[index], name, seq.page_tokens(index))

    def _reenter(self, seq: Sequence) -> None:
        self._unpin_left(seq)
        self._num_failed.pop(seq.seq_id, None)
        if seq.num_computed < seq.replay_until:
            seq.move(Move.TO_REPLAY)
        else:
            seq.move(Move.TO_DECODE if seq.num_generated else Move.TO_PREFILL)

    def _unpin_left(self, seq: Sequence) -> None:
        for host in self._left.pop(seq.seq_id, []):
            self._store.unpin(host)

    def _count_failed_restore(self, seq: Sequence) -> None:
        self._num_failed[seq.seq_id] += 1
        if self._num_failed[seq.seq_id] >= RESTORE_TRIES and seq.can_replay:
            self._unpin_left(seq)
            self._left[seq.seq_id] = []


def _max_named(seq: Sequence) -> int:
    """Pages of `seq` that may be taken by name: full ones, the last known token's never."""
    return (len(seq.tokens) - 1) // PAGE_CELLS
