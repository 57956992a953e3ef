"""Copies in flight between pool and host store.

A copy holds its pages and pins its buffers until it has landed, whatever becomes of the sequence
meanwhile; then it calls `landed` or `failed`, once, and lets go.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kvalet.core.pages import PagePool
from kvalet.core.plan import Direction, PageId, Transfer, TransferId
from kvalet.core.sequence import Sequence, Status
from kvalet.core.store import HostPage, HostStore

Pair: TypeAlias = tuple[PageId, HostPage]
Then: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Flight:
    seq: Sequence
    transfer: Transfer
    host_pages: list[HostPage]
    landed: Then
    failed: Then

    @property
    def pages(self) -> list[PageId]:
        return [page for page, _ in self.transfer.moves]


class Transfers:
    def __init__(self, pool: PagePool, store: HostStore) -> None:
        self._pool = pool
        self._store = store
        self._flights: dict[TransferId, _Flight] = {}
        self._started: list[Transfer] = []
        self._next_id = 0

    @property
    def is_in_flight(self) -> bool:
        return bool(self._flights)

    def copy_out(self, seq: Sequence, pairs: Iterable[Pair], landed: Then, failed: Then) -> int:
        """Copy those of `pairs` that nobody else has put into the store, or on the way there;
        returns how many. If there are none, they have landed."""
        new = [(page, host) for page, host in pairs if host.pins == 1]
        if new:
            self._start(seq, Direction.OUT, new, landed, failed)
        else:
            landed()
        return len(new)

    def copy_in(self, seq: Sequence, pairs: list[Pair], landed: Then, failed: Then) -> None:
        self._start(seq, Direction.IN, pairs, landed, failed)

    def _start(
        self, seq: Sequence, direction: Direction, pairs: list[Pair], landed: Then, failed: Then
    ) -> None:
        for page, host in pairs:
            self._pool.hold(page)
            self._store.pin_again(host)
        moves = tuple((page, host.host_id) for page, host in pairs)
        transfer = Transfer(TransferId(self._next_id), seq.seq_id, direction, moves)
        self._next_id += 1
        host_pages = [host for _, host in pairs]
        self._flights[transfer.transfer_id] = _Flight(seq, transfer, host_pages, landed, failed)
        self._started.append(transfer)

    def take_started(self) -> tuple[Transfer, ...]:
        """Copies begun since the last call: the next plan's."""
        started = tuple(self._started)
        self._started.clear()
        return started

    def land(self, transfer_id: TransferId) -> Sequence:
        """Complete. Returns its sequence, which may have ended meanwhile."""
        flight = self._flights.pop(transfer_id)
        for host in flight.host_pages:
            host.is_landed = True
        flight.landed()
        self._let_go(flight)
        return flight.seq

    def fail(self, transfer_id: TransferId) -> Sequence:
        """What did not get out is not in the store. Returns its sequence, as `land` does."""
        flight = self._flights.pop(transfer_id)
        if flight.transfer.direction is Direction.OUT:
            for host in flight.host_pages:
                self._store.lose(host)
        flight.failed()
        self._let_go(flight)
        return flight.seq

    def num_leaving(self, sequences: Iterable[Sequence]) -> int:
        """Pages all of whose holders are on their way out."""
        if not self._flights:
            return 0
        leaving = Counter(p for s in sequences if s.status is Status.PREEMPTING for p in s.table)
        for flight in self._flights.values():
            if flight.seq.status in (Status.PREEMPTING, Status.ENDED):
                leaving.update(flight.pages)
        return sum(self._pool.refs(page) == holders for page, holders in leaving.items())

    def holdings(self) -> Iterator[list[PageId]]:
        """Pages that copies in flight hold."""
        for flight in self._flights.values():
            yield flight.pages

    def _let_go(self, flight: _Flight) -> None:
        self._pool.release_all(flight.pages)
        for host in flight.host_pages:
            self._store.unpin(host)
