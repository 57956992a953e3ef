"""Where the host store's places have their bytes: slabs of RAM, and files of a folder on disk.

Bytes only: which place holds what, and for how long, is core's business. One thread at a time uses
all of this, so nothing is locked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvalet.core.plan import HostId, Tier
from kvalet.engine.host.faultlog import FaultLog
from kvalet.engine.host.folder import OwnFolder
from kvalet.engine.host.memory import Memory, copy, view
from kvalet.engine.host.statefile import open_state, write_state
from kvalet.errors import EngineError, StateFileError

SLAB_BYTES: Final = 4 << 20  # of pages that are smaller, several share a slab
MAX_SLAB_PAGES: Final = 16
SPARE: Final = 4  # of so many pages in use, one more may be kept ready


@dataclass(slots=True)
class Slab:
    memory: Memory
    used: set[int] = field(default_factory=set[int])  # places


class Slabs:
    """Page-sized buffers by number, allocated and given back in slabs."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self.slab_pages = max(1, min(MAX_SLAB_PAGES, SLAB_BYTES // page_bytes))
        self._slabs: dict[int, Slab] = {}
        self._num_used = 0  # pages

    def read(self, place: int) -> int:
        """Raises EngineError if the place holds nothing."""
        slab = self._slabs.get(place // self.slab_pages)
        if slab is None or place not in slab.used:
            raise EngineError(f"host page {place} holds nothing")
        return self._address(slab, place)

    def write(self, place: int, address: int) -> None:
        """Raises EngineError without memory."""
        slab = self._slabs.get(place // self.slab_pages)
        if slab is None:
            slab = Slab(Memory(self.slab_pages * self._page_bytes))
            self._slabs[place // self.slab_pages] = slab
        self._num_used += place not in slab.used
        slab.used.add(place)
        copy(self._address(slab, place), address, self._page_bytes)

    def forget(self, place: int) -> None:
        slab = self._slabs.get(place // self.slab_pages)
        if slab is not None and place in slab.used:
            slab.used.remove(place)
            self._num_used -= 1

    def give_back(self) -> None:
        """Empty slabs, the highest first, as long as more is held than is used, a quarter of it and
        a slab; nothing stays when nothing is used."""
        used = self._num_used
        wanted = (used + used // SPARE) // self.slab_pages + 1 if used else 0
        if len(self._slabs) <= wanted:
            return
        empty = sorted(number for number, slab in self._slabs.items() if not slab.used)
        for number in empty[-(len(self._slabs) - wanted) :]:
            self._slabs.pop(number).memory.close()

    def close(self) -> None:
        while self._slabs:
            self._slabs.popitem()[1].memory.close()

    def _address(self, slab: Slab, place: int) -> int:
        return slab.memory.address + place % self.slab_pages * self._page_bytes


class PageFiles:
    """A state file of one page for each place, in a folder of this process's own. Whoever can write
    there can exchange them: each is known by the digest of what was written to it last."""

    def __init__(self, folder: OwnFolder, fingerprint: bytes, page_bytes: int) -> None:
        """Takes over `folder` and closes it."""
        self._folder = folder
        self._fingerprint = fingerprint
        self._page_bytes = page_bytes
        self._digests: dict[int, bytes] = {}  # by place
        self._faults = FaultLog()
        self._staging = Memory(page_bytes)

    def path(self, place: int) -> Path:
        return self._folder.path / f"page-{place}.kv"

    def read(self, place: int) -> int:
        """The page is at this address until the next is read. Raises EngineError for one that is
        missing, damaged, or not the one that was written."""
        try:
            with open_state(self.path(place), self._fingerprint, self._page_bytes) as state:
                if state.header.digests != (self._digests.get(place),):
                    raise EngineError(f"disk page {place} was replaced by another one")
                state.read(0, view(self._staging.address, self._page_bytes))
        except StateFileError as error:
            raise EngineError(f"disk page {place}: {error}") from error
        return self._staging.address

    def write(self, place: int, address: int) -> None:
        """Raises EngineError if the disk is full or fails."""
        path, size = self.path(place), self._page_bytes
        with write_state(path, self._fingerprint, size, num_pages=1, durable=False) as add:
            digest = add(view(address, size))
        self._digests[place] = digest

    def forget(self, place: int) -> None:
        self._digests.pop(place, None)
        try:
            self.path(place).unlink(missing_ok=True)
        except OSError as error:
            self._faults.note(f"cannot remove {self.path(place)}: {error.strerror}")

    def close(self) -> None:
        self._folder.close()
        self._staging.close()


class HostPlaces:
    """The bytes of every place of the host store, by address while they are copied."""

    def __init__(self, page_bytes: int, files: PageFiles | None) -> None:
        """Takes over `files` and closes them."""
        self._slabs = Slabs(page_bytes)
        self._files = files

    def read(self, host: HostId) -> int:
        """The page is at this address until the next call. Raises EngineError if the place holds
        none, or not the one that was written."""
        return self._tier(host).read(host.place)

    def write(self, host: HostId, address: int) -> None:
        """Fill the place with the page at `address`. Raises EngineError without room for it."""
        self._tier(host).write(host.place, address)

    def forget(self, hosts: Iterable[HostId]) -> None:
        """Nobody needs what these places hold, if anything."""
        for host in hosts:
            if host.tier is Tier.RAM:
                self._slabs.forget(host.place)
            elif self._files is not None:
                self._files.forget(host.place)
        self._slabs.give_back()

    def close(self) -> None:
        """Safe to call twice."""
        self._slabs.close()
        if self._files is not None:
            self._files.close()

    def _tier(self, host: HostId) -> Slabs | PageFiles:
        if host.tier is Tier.RAM:
            return self._slabs
        if self._files is None:
            raise EngineError(f"disk page {host.place}: no folder was named")
        return self._files
