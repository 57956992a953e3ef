"""One server under one set of flags: load for a while, then quiet, then the account of it.

At the end nothing may be held, nobody may be without an answer, and a sample of the texts must be
those of a quiet server that answers one request at a time.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

import httpx
from bench.soak.client import send
from bench.soak.faults import Troublemaker
from bench.soak.outcome import Fate, Outcome
from bench.soak.requests import RandomRequests

from kvalet.bench.process import ServerProcess
from kvalet.bench.target import server_counters
from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES

MOST_AT_ONCE = 24
NUM_COMPARED = 12
AMPLE_CELLS = 4096
ANSWER_S = 300.0  # for everybody who has asked
QUIET_S = 60.0  # to give everything back once nobody wants anything
MIB = 1 << 20
RSS_SLACK = 64 * MIB  # and a quarter
TIMEOUT = httpx.Timeout(20.0, read=ANSWER_S, pool=None)
LIMITS = httpx.Limits(max_connections=None)
ZERO_AT_REST = (
    *("kv_cells_used", "kv_cells_shared", "preempt_ram_bytes", "preempt_disk_bytes"),
    *("requests_processing", "requests_deferred", "requests_preempted", "requests_waiting"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    model: Path
    disk: Path  # folder of parked chats
    n_ctx: int
    num_slots: int
    endless: bool
    flags: tuple[str, ...]
    env: Mapping[str, str]
    gap_s: float  # between arrivals, on average
    cache_mib: int  # that the host store may keep

    def server(self) -> ServerProcess:
        return ServerProcess(*self._common(self.n_ctx), *self.flags, env=self.env)

    def quiet_server(self) -> ServerProcess:
        """Ample; where contexts shift, of the same size, since that is when they do."""
        return ServerProcess(*self._common(self.n_ctx if self.endless else AMPLE_CELLS))

    def _common(self, cells: int) -> tuple[str, ...]:
        shift = ("--context-shift",) if self.endless else ()
        return ("-m", str(self.model), "-c", str(cells), "--threads", "1", *shift)

    def describe(self) -> str:
        variables = [f"{name}={value}" for name, value in self.env.items()]
        shift = ["--context-shift"] if self.endless else []
        return " ".join([*variables, f"-c {self.n_ctx}", *shift, *self.flags])


def random_settings(random: Random, model: Path, folder: Path, *, endless: bool) -> Settings:
    """`folder`: for what the server writes."""
    disk, states = folder / "disk", folder / "states"
    for made in (disk, states):
        made.mkdir(parents=True, exist_ok=True)
    num_slots, cache_mib = random.choice((3, 4, 6)), random.choice((0, 1, 64))
    pick = {
        "--preempt-policy": random.choice(list(VICTIM_POLICIES)),
        "--preempt-trigger": random.choice(("lookahead", "lookahead", "watermark")),
        "--preempt-resume": random.choice(list(LINE_ORDERS)),
        "--preempt-starved": random.choice(("1", "3")),
        "--preempt-rotate": random.choice(("0.2", "1")),
        "--batch-size": random.choice(("32", "512")),
        "--max-queue": random.choice(("4", "128")),
        "--parallel": str(num_slots),
        "--park-timeout": "5",
        "--slot-save-path": str(states),
        "--cache-ram": str(cache_mib),
        **_random_copies(random, disk),
    }
    env = {
        "LLAMA_SERVER_PREEMPT_EVERY": random.choice(("0", "0", "17", "60")),
        "LLAMA_SERVER_PREEMPT_PLANNER": random.choice(("on", "on", "on", "off")),
    }
    copies = random.choice(("--preempt-async", "--preempt-async", "--no-preempt-async"))
    if copies == "--no-preempt-async":
        pick["--preempt-mirror"] = "off"
    pick["--preempt-replay-margin"] = random.choice(("0", "32", "32", "200"))
    flags = (*(word for item in pick.items() for word in item), copies, "--check")
    n_ctx = random.choice((256, 384) if endless else (384, 640, 1000))
    gap_s = random.choice((0.05, 0.15, 0.4))
    return Settings(model, disk, n_ctx, num_slots, endless, flags, env, gap_s, cache_mib)


def _random_copies(random: Random, disk: Path) -> dict[str, str]:
    """Whether pages go to the host ahead of a park, and where to when it comes."""
    ram = random.choice(("0", "1", "1", "8192", "-1"))
    flags = {"--preempt-mirror": random.choice(("on", "off")), "--preempt-ram": ram}
    if ram == "0" or random.random() < 0.4:
        return flags
    limit = random.choice(("1", "64"))
    return {**flags, "--preempt-disk": str(disk), "--preempt-disk-limit": limit}


@dataclass(slots=True)
class Account:
    num_requests: int = 0
    num_parks: int = 0
    num_compared: int = 0
    fates: Counter[Fate] = field(default_factory=Counter[Fate])
    lost: list[str] = field(default_factory=list[str])
    leaked: list[str] = field(default_factory=list[str])

    def count(self, outcomes: list[Outcome]) -> None:
        self.num_requests = len(outcomes)
        self.fates = Counter(outcome.fate for outcome in outcomes)
        lost = [outcome for outcome in outcomes if outcome.fate is Fate.LOST]
        self.lost += [f"{outcome.why}: {outcome.request}" for outcome in lost]

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.leaked)

    def describe(self) -> str:
        fates = [f"{count} {fate.value}" for fate, count in self.fates.items()]
        faults = [f"\n  {fault[:600]}" for fault in (*self.lost, *self.leaked)]
        return f"{', '.join(fates)}; {self.num_parks} parks, {self.num_compared} compared" + (
            "".join(faults)
        )

    def add(self, other: "Account") -> None:
        self.num_requests += other.num_requests
        self.num_parks += other.num_parks
        self.num_compared += other.num_compared
        self.fates += other.fates
        self.lost += other.lost
        self.leaked += other.leaked


async def soak(settings: Settings, random: Random, seconds: float) -> Account:
    account = Account()
    with settings.server() as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT, limits=LIMITS) as http:
            load = Load(settings, http, random, account)
            outcomes = await load.run(seconds, server.process.pid)
            account.leaked += await _held(http)
            account.num_parks = round((await server_counters(http))["n_preempt_total"])
            if (await http.get("/health")).status_code != 200:
                account.lost.append("the server is not well")
            account.leaked += [f"{page} is left" for page in settings.disk.glob("*/page*")]
    account.leaked += [f"{path} is left" for path in settings.disk.iterdir()]
    account.count(outcomes)
    await _compare(settings, random, outcomes, account)
    return account


class Load:
    """Requests and mischief at random times, until the time is over and all have ended."""

    def __init__(
        self, settings: Settings, http: httpx.AsyncClient, random: Random, account: Account
    ) -> None:
        self._settings = settings
        self._http = http
        self._random = random
        self._account = account
        self._requests = RandomRequests(
            Random(random.random()), settings.n_ctx, settings.num_slots, settings.endless
        )
        self._trouble = Troublemaker(http, Random(random.random()), settings.num_slots)
        self._running: set[asyncio.Task[Outcome]] = set()
        self._acting: set[asyncio.Task[None]] = set()
        self._all: list[asyncio.Task[Outcome]] = []

    async def run(self, seconds: float, pid: int) -> list[Outcome]:
        start, warm_rss = time.monotonic(), 0
        while (elapsed := time.monotonic() - start) < seconds:
            await asyncio.sleep(self._random.expovariate(1 / self._settings.gap_s))
            self._arrive()
            if elapsed > seconds / 3 and not warm_rss:
                warm_rss = _rss(pid)
            if self._random.random() < 0.1:
                self._check_counters(await server_counters(self._http))
        await asyncio.gather(*self._acting)
        await self._trouble.resume_all()
        outcomes = await self._drain()
        if _rss(pid) > 1.25 * warm_rss + RSS_SLACK + self._settings.cache_mib * MIB:
            self._account.leaked.append(f"memory: {warm_rss >> 20} MiB, now {_rss(pid) >> 20}")
        self._account.lost += self._trouble.complaints
        return outcomes

    def _arrive(self) -> None:
        if len(self._running) < MOST_AT_ONCE:
            request, settings = self._requests.next(), self._settings
            task = asyncio.create_task(
                send(self._http, request, settings.n_ctx, endless=settings.endless)
            )
            self._all.append(task)
            _track(task, self._running)
        if self._random.random() < 0.2:
            _track(asyncio.create_task(self._trouble.act()), self._acting)

    async def _drain(self) -> list[Outcome]:
        _, pending = await asyncio.wait(self._all, timeout=ANSWER_S)
        for task in pending:
            task.cancel()
            self._account.lost.append(f"no answer within {ANSWER_S:.0f} s of the last request")
        return [task.result() for task in self._all if task not in pending]

    def _check_counters(self, now: Mapping[str, float]) -> None:
        by_mode = now["n_preempt_swap_total"] + now["n_preempt_recompute_total"]
        if now["n_preempt_total"] != by_mode:
            self._account.lost.append(f"parks do not add up: {now}")
        if now["kv_cells_used"] + now["kv_cells_cached"] > now["kv_cells_total"]:
            self._account.leaked.append(f"more cells than there are: {now}")


Result = TypeVar("Result")


def _track(task: asyncio.Task[Result], tasks: set[asyncio.Task[Result]]) -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _held(http: httpx.AsyncClient) -> list[str]:
    """What is still held once everything could have been given back."""
    deadline = time.monotonic() + QUIET_S
    while True:
        now = await server_counters(http)
        held = [f"{name} is {now[name]:.0f}" for name in ZERO_AT_REST if now[name]]
        if not held or time.monotonic() > deadline:
            return held
        await asyncio.sleep(0.2)


async def _compare(
    settings: Settings, random: Random, outcomes: list[Outcome], account: Account
) -> None:
    """A sample of what was answered, with what the same requests get one at a time."""
    done = [outcome for outcome in outcomes if outcome.fate is Fate.DONE]
    if settings.endless:  # choices would share the quiet server's pool, which has to be as small
        done = [outcome for outcome in done if outcome.request.num_choices == 1]
    sample = random.sample(done, min(NUM_COMPARED, len(done)))
    with settings.quiet_server() as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as http:
            for outcome in sample:
                request = outcome.request_alone(settings.n_ctx, endless=settings.endless)
                alone = await send(http, request, AMPLE_CELLS, endless=True)
                if alone.texts != outcome.texts:
                    account.lost.append(_difference(outcome, alone))
            parks = (await server_counters(http))["n_preempt_total"]
    account.num_compared = len(sample)
    if parks:
        account.lost.append(f"the quiet server parked {parks:.0f} times")


def _difference(outcome: Outcome, alone: Outcome) -> str:
    return f"not as alone ({alone.why or alone.fate.value}): {outcome.request.body}"


def _rss(pid: int) -> int:
    """Resident bytes of a process; 0 where that cannot be known."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
