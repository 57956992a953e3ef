"""The servers of a soak: with flags drawn at random, and the quiet one that is compared with."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from typing_extensions import override

from kvalet.bench.process import ServerProcess
from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES

AMPLE_CELLS = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    model: Path
    folder: Path  # of what the server writes
    seed: int
    endless: bool  # contexts shift
    n_ctx: int
    num_slots: int
    flags: tuple[str, ...]
    every: str  # tokens between forced parks; 0: none is forced
    planner: str  # on: the next step is planned while one computes
    gap_s: float  # between arrivals, on average
    cache_mib: int  # that the host store may keep

    def server(self) -> ServerProcess:
        env = {
            "LLAMA_SERVER_PREEMPT_EVERY": self.every,
            "LLAMA_SERVER_PREEMPT_PLANNER": self.planner,
        }
        return ServerProcess(*self._common(self.n_ctx), *self.flags, env=env)

    def quiet_server(self) -> ServerProcess:
        """Ample; where contexts shift, of the same size, since that is when they do."""
        return ServerProcess(*self._common(self.n_ctx if self.endless else AMPLE_CELLS))

    def _common(self, cells: int) -> tuple[str, ...]:
        shift = ("--context-shift",) if self.endless else ()
        return ("-m", str(self.model), "-c", str(cells), "--threads", "1", *shift)

    @override
    def __str__(self) -> str:
        told = f"forced every {self.every}, planner {self.planner}"
        return f"seed {self.seed}: {told}, {' '.join((*self._common(self.n_ctx), *self.flags))}"


def random_settings(seed: int, model: Path, folder: Path) -> Settings:
    """Contexts shift if `seed` is odd. `folder`: for what the server writes."""
    random, endless = Random(seed), seed % 2 == 1
    for made in ("disk", "states"):
        (folder / made).mkdir(parents=True)
    pick = random.choice
    num_slots, cache_mib = pick((3, 4, 6)), pick((0, 1, 64))
    flags = {
        "--preempt-policy": pick(list(VICTIM_POLICIES)),
        "--preempt-trigger": pick(("lookahead", "lookahead", "watermark")),
        "--preempt-resume": pick(list(LINE_ORDERS)),
        "--preempt-starved": pick(("1", "3")),
        "--preempt-rotate": pick(("0.2", "1")),
        "--preempt-replay-margin": pick(("0", "32", "32", "200")),
        "--batch-size": pick(("32", "512")),
        "--max-queue": pick(("4", "128")),
        "--parallel": str(num_slots),
        "--park-timeout": "5",
        "--slot-save-path": str(folder / "states"),
        "--cache-ram": str(cache_mib),
        **_places(random, folder / "disk"),
    }
    copies: tuple[str, ...] = pick(((), (), ("--no-preempt-async",)))
    flags["--preempt-mirror"] = "off" if copies else pick(("on", "off"))
    return Settings(
        model,
        folder,
        seed,
        endless,
        pick((256, 384) if endless else (384, 640, 1000)),
        num_slots,
        (*(f"{name}={value}" for name, value in flags.items()), *copies, "--check"),
        every=pick(("0", "0", "17", "60")),
        planner=pick(("on", "on", "on", "off")),
        gap_s=pick((0.03, 0.1, 0.3)),
        cache_mib=cache_mib,
    )


def _places(random: Random, disk: Path) -> dict[str, str]:
    """Where parked pages go."""
    ram = {"--preempt-ram": random.choice(("0", "1", "1", "8192", "-1"))}
    if ram["--preempt-ram"] == "0" or random.random() < 0.4:
        return ram
    limit = random.choice(("1", "64"))
    return {**ram, "--preempt-disk": str(disk), "--preempt-disk-limit": limit}
