"""What transfers move, page by page. When a page is moved is the copier's business."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from kvalet.core.plan import (
    AnyTransfer,
    Direction,
    HostId,
    PageId,
    StateId,
    StateLoad,
    StateSave,
    Transfer,
)
from kvalet.engine.host.memory import Memory, view
from kvalet.engine.host.places import HostPlaces
from kvalet.engine.host.statefile import open_state, write_state
from kvalet.errors import EngineError, KvaletError, StateFileError

PageMoves: TypeAlias = tuple[tuple[PageId | StateId, HostId], ...]
Pages: TypeAlias = Generator[None, None, None]  # stops before each page


class PageBytes(Protocol):
    """Device memory, a page at a time. Only that of the CPU is built; a device with memory of its
    own would stage pages here, with its asynchronous copies."""

    @property
    def page_bytes(self) -> int: ...

    def read(self, page: PageId) -> int:
        """The page is at this address until the next call. Raises EngineError."""
        ...

    def write(self, page: PageId, address: int) -> None:
        """Fill the page with the bytes at `address`. Raises EngineError."""
        ...


class Moves:
    """Between the device, the host's places and state files."""

    def __init__(self, pages: PageBytes, hosts: HostPlaces, fingerprint: bytes) -> None:
        self._pages = pages
        self._hosts = hosts
        self._fingerprint = fingerprint
        self._page_bytes = pages.page_bytes
        self._staging = Memory(pages.page_bytes)

    def run(self, transfer: AnyTransfer) -> Pages:
        """Raises EngineError or StateFileError when it fails; places that were to be filled hold
        nothing then."""
        match transfer:
            case Transfer(direction=Direction.OUT, moves=moves):
                yield from self._out(moves)
            case Transfer(moves=moves):
                yield from self._in(moves)
            case StateSave():
                yield from self._save(transfer)
            case StateLoad():
                yield from self._load(transfer)

    def forget(self, hosts: Iterable[HostId]) -> None:
        self._hosts.forget(hosts)

    def close(self) -> None:
        self._staging.close()

    @staticmethod
    def _page(place: PageId | StateId) -> PageId:
        if isinstance(place, StateId):
            raise EngineError("the model has no recurrent layers, whose state could be copied")
        return place

    def _out(self, moves: PageMoves) -> Pages:
        with self._all_or_nothing(host for _, host in moves):
            for place, host in moves:
                yield
                self._hosts.write(host, self._pages.read(self._page(place)))

    def _in(self, moves: PageMoves) -> Pages:
        for place, host in moves:
            yield
            self._pages.write(self._page(place), self._hosts.read(host))

    def _save(self, save: StateSave) -> Pages:
        path, root, size = Path(save.path), self._fingerprint, self._page_bytes
        with write_state(path, root, size, len(save.pages), save.tokens, durable=True) as add:
            for page in save.pages:
                yield
                at = self._hosts.read(page) if isinstance(page, HostId) else self._pages.read(page)
                add(view(at, size))

    def _load(self, load: StateLoad) -> Pages:
        path, at = Path(load.path), self._staging.address
        with (
            self._all_or_nothing(host for _, host in load.moves),
            open_state(path, self._fingerprint, self._page_bytes) as state,
        ):
            if state.header.tokens != load.tokens:
                raise StateFileError(f"state file {path.name} was replaced by another one")
            for index, host in load.moves:
                yield
                state.read(index, view(at, self._page_bytes))
                self._hosts.write(host, at)

    @contextmanager
    def _all_or_nothing(self, hosts: Iterable[HostId]) -> Iterator[None]:
        try:
            yield
        except KvaletError:
            self._hosts.forget(hosts)
            raise
