"""A server process over the fake service: `python -m tests.server.main HOW PORT`, for signals."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from kvalet.core.plan import SeqId
from kvalet.runtime.messages import Delta, Generation, Sink
from kvalet.server.desk import ServerSettings
from kvalet.server.ports import ServedModel
from kvalet.server.run import run
from tests.server.fakes import FakeService, endless, make_model, plays


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


SERVICES: Mapping[str, Callable[[], FakeService]] = {
    "well": lambda: FakeService(script=endless),
    "flood": lambda: FakeService(script=plays(*[[Delta("x" * 10_000, ())]] * 2000)),
    "hanging": lambda: HangingService(script=endless),
    "dying": lambda: DyingService(script=endless),
    "loading": load_for_ever,
}


def main(how: str, port: int) -> int:
    def load() -> ServedModel:
        return make_model(SERVICES[how](), template=True, add_bos=True, props={})

    def on_ready(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    return run(ServerSettings(port=port), load, on_ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
