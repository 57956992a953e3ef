"""One server under one set of flags: load for a while, then quiet, then the account of it.

At the end nothing may be held, no request may be without an answer, and a sample of the texts must
be those of a quiet server that answers one request at a time.
"""

import asyncio
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
from bench.soak.answers import Answer, Fate, ask
from bench.soak.faults import Troublemaker
from bench.soak.flags import AMPLE_CELLS, Settings
from bench.soak.requests import requests
from typing_extensions import override

from kvalet.bench.figures import MIB
from kvalet.bench.target import server_counters

MOST_AT_ONCE = 24
NUM_COMPARED = 24
ANSWER_S = 300.0  # for every request, from the last one on
QUIET_S = 60.0  # to give everything back once nothing is wanted
RSS_SLACK = 64 * MIB  # and a quarter
TIMEOUT = httpx.Timeout(20.0, read=ANSWER_S, pool=None)
LIMITS = httpx.Limits(max_connections=None)
ZERO_AT_REST = (
    *("kv_cells_used", "kv_cells_shared", "preempt_ram_bytes", "preempt_disk_bytes"),
    *("requests_processing", "requests_deferred", "requests_preempted", "requests_waiting"),
)


@dataclass(slots=True)
class Account:
    fates: Counter[str] = field(default_factory=Counter[str])
    num_parks: int = 0
    num_compared: int = 0
    lost: list[str] = field(default_factory=list[str])  # requests without their answer
    leaked: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])  # other texts than alone

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.leaked or self.wrong)

    @override
    def __str__(self) -> str:
        fates = ", ".join(f"{count} {fate}" for fate, count in self.fates.items())
        return (
            f"{self.fates.total()} requests ({fates}), {self.num_parks} parks, "
            f"{self.num_compared} compared: lost {len(self.lost)}, leaked {len(self.leaked)}, "
            f"wrong {len(self.wrong)}"
        )

    def faults(self) -> list[str]:
        return [fault[:600] for fault in (*self.lost, *self.leaked, *self.wrong)]

    def add(self, other: "Account") -> None:
        self.fates += other.fates
        self.num_parks += other.num_parks
        self.num_compared += other.num_compared
        self.lost += other.lost
        self.leaked += other.leaked
        self.wrong += other.wrong


async def soak(settings: Settings, seconds: float) -> Account:
    account, random, disk = Account(), Random(settings.seed), settings.folder / "disk"
    with settings.server() as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT, limits=LIMITS) as http:
            answers = await _load(settings, http, random, account, seconds, server.process.pid)
            account.leaked += await _held(http)
            account.num_parks = round((await server_counters(http))["n_preempt_total"])
            if (await http.get("/health")).status_code != 200:
                account.lost.append("the server is not well")
            account.leaked += [f"{page} is left" for page in disk.glob("*/page*")]
    account.leaked += [f"{path} is left" for path in disk.iterdir()]
    account.fates = Counter(answer.fate.value for answer in answers)
    lost = [answer for answer in answers if answer.fate is Fate.LOST]
    account.lost += [f"{answer.why}: {answer.request}" for answer in lost]
    await _compare(settings, random, answers, account)
    return account


async def _load(
    settings: Settings,
    http: httpx.AsyncClient,
    random: Random,
    account: Account,
    seconds: float,
    pid: int,
) -> list[Answer]:
    """Requests and mischief at random times, until the time is over and all have ended."""
    n_ctx, num_slots, endless = settings.n_ctx, settings.num_slots, settings.endless
    asked = requests(Random(random.random()), n_ctx, num_slots, endless=endless)
    trouble = Troublemaker(http, Random(random.random()), num_slots)
    answers: list[asyncio.Task[Answer]] = []
    acts: list[asyncio.Task[None]] = []
    start, warm_rss = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        await asyncio.sleep(random.expovariate(1 / settings.gap_s))
        if sum(not answer.done() for answer in answers) < MOST_AT_ONCE:
            one = ask(http, next(asked), n_ctx, endless=endless)
            answers.append(asyncio.create_task(one))
        if random.random() < 0.2:
            acts.append(asyncio.create_task(trouble.act()))
        if random.random() < 0.1:
            await _check_counters(http, account)
        if elapsed > seconds / 3 and not warm_rss:
            warm_rss = _rss(pid)
    await asyncio.gather(*acts)
    await trouble.resume_all()
    account.lost += trouble.complaints
    done, pending = await asyncio.wait(answers, timeout=ANSWER_S)
    for task in pending:
        task.cancel()
        account.lost.append(f"no answer within {ANSWER_S:.0f} s of the last request")
    if _rss(pid) > 1.25 * warm_rss + RSS_SLACK + settings.cache_mib * MIB:
        account.leaked.append(f"memory: {warm_rss // MIB} MiB, now {_rss(pid) // MIB}")
    return [task.result() for task in answers if task in done]


async def _check_counters(http: httpx.AsyncClient, account: Account) -> None:
    now = await server_counters(http)
    if now["n_preempt_total"] != now["n_preempt_swap_total"] + now["n_preempt_recompute_total"]:
        account.wrong.append(f"parks do not add up: {now}")
    if now["kv_cells_used"] + now["kv_cells_cached"] > now["kv_cells_total"]:
        account.leaked.append(f"more cells than there are: {now}")


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
    settings: Settings, random: Random, answers: list[Answer], account: Account
) -> None:
    """A sample of what was answered, with what the same requests get one at a time."""
    endless = settings.endless  # choices would share the quiet server's pool, which is as small
    done = [
        answer
        for answer in answers
        if answer.fate is Fate.DONE and (answer.request.num_choices == 1 or not endless)
    ]
    sample = random.sample(done, min(NUM_COMPARED, len(done)))
    with settings.quiet_server() as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as http:
            for answer in sample:
                request = answer.request_alone(settings.n_ctx, endless=endless)
                alone = await ask(http, request, AMPLE_CELLS, endless=True)
                if alone.texts != answer.texts:
                    what = alone.why or alone.fate.value
                    account.wrong.append(f"not as alone ({what}): {answer.request.body}")
            parks = (await server_counters(http))["n_preempt_total"]
    account.num_compared = len(sample)
    if parks:
        account.wrong.append(f"the quiet server parked {parks:.0f} times")


def _rss(pid: int) -> int:
    """Resident bytes of a process; 0 where that cannot be known."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
