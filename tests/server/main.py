"""A server process over the fake service, for signals: `python -m tests.server.main HOW PORT
DRAIN_SECONDS`."""

import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from typing_extensions import override

from kvalet.core.plan import SeqId
from kvalet.runtime.messages import Delta, Event, Generation, Sink
from kvalet.server.desk import ServerSettings
from kvalet.server.ports import ServedModel
from kvalet.server.run import run
from tests.server.fakes import FakeService, endless, finished, make_model, plays


class HangingService(FakeService):
    @override
    def close(self) -> bool:
        time.sleep(60)
        return True


class DyingService(FakeService):
    @override
    def submit_family(
        self, generations: Sequence[Generation], sinks: Sequence[Sink]
    ) -> list[SeqId]:
        ids = super().submit_family(generations, sinks)
        self.die("the device is gone")
        return ids


def load_for_ever() -> FakeService:
    time.sleep(60)
    return FakeService()


def speaks_until_asked() -> FakeService:
    """Its sequences end when somebody asks for something to be done with a slot."""
    service = FakeService()

    def script(generation: Generation) -> Iterator[Sequence[Event]]:
        yield from itertools.takewhile(lambda batch: not service.asked, endless(generation))
        yield [finished(generation, 1)]

    service.script = script
    return service


SERVICES: Mapping[str, Callable[[], FakeService]] = {
    "well": lambda: FakeService(script=endless),
    "until asked": speaks_until_asked,
    "flood": lambda: FakeService(script=plays(*[[Delta("x" * 10_000, ())]] * 2000)),
    "hanging": lambda: HangingService(script=endless),
    "dying": lambda: DyingService(script=endless),
    "loading": load_for_ever,
}


def main(how: str, port: int, drain_s: float) -> int:
    def load() -> ServedModel:
        return make_model(SERVICES[how](), template=True, add_bos=True, props={})

    def on_ready(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    code = run(ServerSettings(port=port, drain_s=drain_s), load, on_ready)
    sys.stdout.write(f"{gc.get_freeze_count()} objects left to the last collection alone\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
