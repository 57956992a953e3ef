"""Copies under way between pool, host store and state files.

A copy holds its pages and keeps its places busy until it has landed, whatever becomes of the
sequence meanwhile; then it calls `landed` or `failed`, once, and lets go. Copies land in the order
in which they were started, but for those of state files.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from kvalet.core.pages import PagePool
from kvalet.core.plan import (
    AnyTransfer,
    Direction,
    PageId,
    StateLoad,
    StateSave,
    Transfer,
    TransferId,
)
from kvalet.core.sequence import Sequence, Status
from kvalet.core.store import HostPage, HostStore

Pair: TypeAlias = tuple[PageId, HostPage]
Then: TypeAlias = Callable[[], None]


def _nothing() -> None:
    pass


class _Kind(Enum):
    MOVE = "a sequence goes out or comes in"
    AHEAD = "into the cache, for nobody yet"
    FILE = "to or from a state file"


@dataclass(frozen=True, slots=True)
class _Flight:
    kind: _Kind
    transfer: AnyTransfer
    seq: Sequence | None
    pages: list[PageId]
    host_pages: list[HostPage]
    fills_host: bool
    landed: Then
    failed: Then


class Transfers:
    def __init__(self, pool: PagePool, store: HostStore) -> None:
        self._pool = pool
        self._store = store
        self._flights: dict[TransferId, _Flight] = {}
        self._held: Counter[PageId] = Counter()
        self._started: list[AnyTransfer] = []
        self._next_id = 0

    @property
    def is_in_flight(self) -> bool:
        return bool(self._flights)

    @property
    def is_moving(self) -> bool:
        """Whether a sequence is on its way out or in."""
        return any(flight.kind is _Kind.MOVE for flight in self._flights.values())

    def num_holding(self, page: PageId) -> int:
        """Copies under way that hold `page`."""
        return self._held[page]

    def num_sharing(self, page: PageId) -> int:
        """Holders of `page` that are not copies."""
        return self._pool.refs(page) - self._held[page]

    def copy_out(self, seq: Sequence, pairs: Iterable[Pair], landed: Then, failed: Then) -> int:
        """Copy those of `pairs` that nobody else has put into the store, or on the way there;
        returns how many. Has landed when all are there, by whichever copy."""
        pairs = list(pairs)
        if all(host.is_landed for _, host in pairs):
            landed()
            return 0
        missing = [(page, host) for page, host in pairs if host.is_missing]
        self._start_moves(seq, Direction.OUT, missing, landed, failed)
        return len(missing)

    def copy_in(self, seq: Sequence, pairs: list[Pair], landed: Then, failed: Then) -> None:
        self._start_moves(seq, Direction.IN, pairs, landed, failed)

    def copy_ahead(self, pairs: list[Pair]) -> None:
        """Into the store as cache."""
        self._start_moves(None, Direction.OUT, pairs, _nothing, _nothing)

    def save(
        self,
        path: str,
        tokens: tuple[int, ...],
        places: list[PageId | HostPage],
    ) -> TransferId:
        """Write the pages in `places`, in position order, to a state file."""
        ids = tuple(p.host_id if isinstance(p, HostPage) else p for p in places)
        save = StateSave(self._new_id(), path, tokens, ids)
        pages = [p for p in places if not isinstance(p, HostPage)]
        host_pages = [p for p in places if isinstance(p, HostPage)]
        return self._start(
            _Flight(_Kind.FILE, save, None, pages, host_pages, False, _nothing, _nothing)
        )

    def load(
        self,
        path: str,
        tokens: tuple[int, ...],
        indexed: list[tuple[int, HostPage]],
        landed: Then,
        failed: Then,
    ) -> TransferId:
        """Read those pages of a state file into the store."""
        moves = tuple((index, host.host_id) for index, host in indexed)
        load = StateLoad(self._new_id(), path, tokens, moves)
        host_pages = [host for _, host in indexed]
        return self._start(_Flight(_Kind.FILE, load, None, [], host_pages, True, landed, failed))

    def _start_moves(
        self,
        seq: Sequence | None,
        direction: Direction,
        pairs: list[Pair],
        landed: Then,
        failed: Then,
    ) -> None:
        moves = tuple((page, host.host_id) for page, host in pairs)
        seq_id = None if seq is None else seq.seq_id
        transfer = Transfer(self._new_id(), seq_id, direction, moves)
        pages, host_pages = [page for page, _ in pairs], [host for _, host in pairs]
        is_out = direction is Direction.OUT
        kind = _Kind.AHEAD if seq is None else _Kind.MOVE
        self._start(_Flight(kind, transfer, seq, pages, host_pages, is_out, landed, failed))

    def _start(self, flight: _Flight) -> TransferId:
        for page in flight.pages:
            self._pool.hold(page)
            self._held[page] += 1
        for host in flight.host_pages:
            self._store.start_copy(host)
        transfer_id = flight.transfer.transfer_id
        self._flights[transfer_id] = flight
        self._started.append(flight.transfer)
        return transfer_id

    def _new_id(self) -> TransferId:
        self._next_id += 1
        return TransferId(self._next_id - 1)

    def take_started(self) -> tuple[AnyTransfer, ...]:
        """Copies begun since the last call: the next plan's."""
        started = tuple(self._started)
        self._started.clear()
        return started

    def whose(self, transfer_id: TransferId) -> Sequence | None:
        """The sequence that a copy moves out or in; it may have ended meanwhile."""
        return self._flights[transfer_id].seq

    def land(self, transfer_id: TransferId) -> AnyTransfer:
        """Complete. Returns what it was."""
        flight = self._flights.pop(transfer_id)
        if flight.fills_host:
            for host in flight.host_pages:
                host.is_landed = True
        flight.landed()
        self._end(flight)
        return flight.transfer

    def fail(self, transfer_id: TransferId) -> AnyTransfer:
        """What did not get out is not in the store. Returns what it was."""
        flight = self._flights.pop(transfer_id)
        if flight.fills_host:
            for host in flight.host_pages:
                self._store.lose(host)
        flight.failed()
        self._end(flight)
        return flight.transfer

    def num_leaving(self, sequences: Iterable[Sequence]) -> int:
        """Pages all of whose holders are copies, but of state files, or on their way out. Those
        that a file holds can take long."""
        if not self._flights:
            return 0
        leaving = Counter(p for s in sequences if s.status is Status.PREEMPTING for p in s.table)
        for flight in self._flights.values():
            is_staying = flight.seq is not None and flight.seq.is_resident
            if flight.kind is not _Kind.FILE and not is_staying:
                leaving.update(flight.pages)
        return sum(self._pool.refs(page) == holders for page, holders in leaving.items())

    def holdings(self) -> Iterator[list[PageId]]:
        """Pages that copies in flight hold."""
        for flight in self._flights.values():
            yield flight.pages

    def busy(self) -> Iterator[HostPage]:
        """Pages of the host store that copies in flight fill or read."""
        for flight in self._flights.values():
            yield from flight.host_pages

    def _end(self, flight: _Flight) -> None:
        self._held.subtract(flight.pages)
        if flight.kind is not _Kind.MOVE:
            self._pool.give_back(flight.pages)
        else:
            self._pool.release_all(list(flight.pages))
        for host in flight.host_pages:
            self._store.end_copy(host)
