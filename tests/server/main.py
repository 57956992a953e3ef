"""A server process over the fake service, for signals: `python -m tests.server.main HOW PORT
DRAIN_SECONDS`."""

import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from typing_extensions import override

from kvalet.core.plan import SeqId
from kvalet.core.request import Request
from kvalet.runtime.messages import Event, Sink, SlotState, Snapshot
from kvalet.server.model import ServedModel
from kvalet.server.run import run
from kvalet.server.settings import ServerSettings
from tests.builders import said
from tests.server.fakes import FakeService, endless, finished, make_model, plays


class HangingService(FakeService):
    @override
    def close(self, reason: str = "", timeout_s: float = 60.0) -> bool:
        time.sleep(timeout_s)
        return True


class DyingService(FakeService):
    @override
    def submit_all(self, requests: Sequence[Request], sinks: Sequence[Sink]) -> list[SeqId]:
        ids = super().submit_all(requests, sinks)
        self.die("the device is gone")
        return ids


def load_for_ever() -> FakeService:
    time.sleep(60)
    return FakeService()


class PatientService(FakeService):
    """Its sequences and its saves end once somebody has looked at its slots. It tells of saves."""

    @override
    def __post_init__(self) -> None:
        self._was_seen = False
        self._saving: list[Future[SlotState]] = []
        self.script = self._speaks_until_seen
        super().__post_init__()

    def _speaks_until_seen(self, request: Request) -> Iterator[Sequence[Event]]:
        yield from itertools.takewhile(lambda batch: not self._was_seen, endless(request))
        yield [finished(request, 1)]

    @override
    def save(self, slot: int, path: str, request_id: str | None = None) -> Future[SlotState]:
        self._saving.append(Future())
        tell("saving")
        return self._saving[-1]

    @override
    def snapshot(self) -> Future[Snapshot]:
        answer = super().snapshot()
        self._was_seen = True
        for saving in self._saving:
            saving.set_result(SlotState(1, 96))
        return answer


def start_no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


SERVICES: Mapping[str, Callable[[], FakeService]] = {
    "well": lambda: FakeService(script=endless),
    "patient": PatientService,
    "threadless": FakeService,
    "flood": lambda: FakeService(script=plays(*[[said("x" * 10_000)]] * 2000)),
    "hanging": lambda: HangingService(script=endless),
    "dying": lambda: DyingService(script=endless),
    "loading": load_for_ever,
}


def main(how: str, port: int, drain_s: float) -> int:
    def load() -> ServedModel:
        return make_model(SERVICES[how](), template=True, add_bos=True, props={})

    def on_ready(url: str) -> None:
        if how == "threadless":
            threading.Thread.start = start_no_thread  # type: ignore[assignment,method-assign]
        tell(url)

    settings = ServerSettings(port=port, drain_s=drain_s, slot_save_path=Path("."))
    code = run(settings, load, on_ready)
    sys.stdout.write(f"{gc.get_freeze_count()} objects left to the last collection alone\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
