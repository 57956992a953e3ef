"""Moves that are only written down, for the copier's tests."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Event

from typing_extensions import override

from kvalet.core.plan import AnyTransfer, HostId, StateId, StateSave
from kvalet.engine.host.moves import Moves, Pages

PATIENCE_S = 20.0


@dataclass
class Recorder(Moves):
    """Moves nothing and writes down what it would have done, by the first number of each move.
    `gate` is waited for in the middle of each page."""

    did: list[str] = field(default_factory=list[str])
    gate: Event = field(default_factory=Event)
    errors: dict[int, Exception] = field(default_factory=dict[int, Exception])  # by page
    page_s: float = 1.0
    now: float = 0.0  # the copier's clock
    closed: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.gate.set()

    @override
    def run(self, transfer: AnyTransfer) -> Pages:
        for page in _numbers(transfer):
            yield
            self.did.append(f"begin {page}")
            assert self.gate.wait(PATIENCE_S)
            if page in self.errors:
                raise self.errors[page]
            self.now += self.page_s
            self.did.append(f"end {page}")

    @override
    def forget(self, hosts: Iterable[HostId]) -> None:
        self.did.append(f"forget {[host.place for host in hosts]}")

    @override
    def close(self) -> None:
        self.closed.set()

    @property
    def num_copied(self) -> int:
        return sum(what.startswith("end") for what in self.did)

    @property
    def order(self) -> list[str]:
        """Pages copied and places forgotten."""
        return [what.removeprefix("end ") for what in self.did if not what.startswith("begin")]


def _numbers(transfer: AnyTransfer) -> Iterator[int]:
    if isinstance(transfer, StateSave):
        yield from (page for page in transfer.pages if not isinstance(page, HostId))
    else:
        for place, _ in transfer.moves:
            yield place.row if isinstance(place, StateId) else place


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)
