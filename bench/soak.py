"""Random clients against real servers, for minutes: is anything lost, leaked, or other than alone?

    PYTHONPATH=. python bench/soak.py [--minutes 10] [--seed 1]

Every phase starts a server on a tiny model with other flags and lets clients come, wait, leave,
misbehave and park slots. Then nothing may be held, and a sample of texts must be what a server with
nobody else on it gives. The last line is a summary; the exit code is 1 if anything is short.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.engine.tiny_models import write_tiny_llama

from kvalet.bench.process import ServerProcess

PHASE_S = 60.0
NUM_CLIENTS = 8
SAMPLE = 12  # texts of a phase that are compared
CELLS = 512
TIMEOUT = httpx.Timeout(10.0, read=90.0)
MOST_RSS_GROWTH_BYTES = 200 << 20
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on old roofs"
MALFORMED: tuple[dict[str, Any], ...] = (
    {"prompt": 7},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "n": 0},
    {"prompt": "x", "max_tokens": "many"},
    {"prompt": "x", "frobnicate": True},
    {"prompt": "word " * 4000},
)


@dataclass
class Phase:
    flags: list[str]
    env: dict[str, str]
    outcomes: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    answers: list[tuple[dict[str, Any], list[str]]] = field(default_factory=list)
    parks: int = 0
    recomputed: int = 0


def make_phase(rng: random.Random) -> Phase:
    flags = ["-c", str(CELLS), "-np", str(rng.choice([2, 4, 6])), "--check"]
    flags += ["--preempt-ram", rng.choice(["0", "1", "8192", "-1"])]
    flags += ["--preempt-resume", rng.choice(["head", "head", "pass"])]
    flags += ["--preempt-trigger", rng.choice(["lookahead", "lookahead", "watermark"])]
    flags += ["--preempt-policy", rng.choice(["smallest", "largest", "youngest", "oldest"])]
    flags += ["--preempt-rotate", "0.2"]
    if rng.random() < 0.4:
        flags.append("--context-shift")
    env = {}
    if rng.random() < 0.5:
        env["LLAMA_SERVER_PREEMPT_EVERY"] = str(rng.choice([5, 16, 40]))
    if rng.random() < 0.2:
        env["LLAMA_SERVER_PREEMPT_PLANNER"] = "off"
    return Phase(flags, env)


def make_request(rng: random.Random, *, is_endless: bool) -> dict[str, Any]:
    """One that ends within the context, unless contexts shift."""
    common = "one prefix for many, long enough to fill some pages of the pool " * rng.choice(
        [0, 0, 1]
    )
    prompt = common + " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 30)))
    most = 900 if is_endless and rng.random() < 0.2 else 200
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": rng.randint(1, most),
        "temperature": rng.choice([0.0, 0.0, 0.9]),
        "seed": rng.randint(0, 1000),
        "n": rng.choice([1, 1, 1, 2, 3]),
        "priority": rng.choice([0, 0, 0, 1, -1]),
        "ignore_eos": True,
    }
    if rng.random() < 0.2:
        body["stop"] = [rng.choice(["e", "zz", "  "])]
    return body


async def client(http: httpx.AsyncClient, rng: random.Random, phase: Phase, until: float) -> None:
    while time.monotonic() < until:
        await asyncio.sleep(rng.random() * 0.3)
        roll = rng.random()
        try:
            if roll < 0.08:
                await misbehave(http, rng, phase)
            elif roll < 0.16:
                await park_a_slot(http, rng, phase)
            else:
                await generate(http, rng, phase)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            phase.faults.append(f"lost: {type(error).__name__}: {error}")


async def misbehave(http: httpx.AsyncClient, rng: random.Random, phase: Phase) -> None:
    response = await http.post("/v1/completions", json=rng.choice(MALFORMED))
    expect(phase, "refused", response, {400})


async def park_a_slot(http: httpx.AsyncClient, rng: random.Random, phase: Phase) -> None:
    action, slot = rng.choice(["park", "park", "resume"]), rng.randint(0, 1)
    body = {"timeout": rng.choice([0.1, 0.5])}
    response = await http.post(f"/slots/{slot}?action={action}", json=body)
    expect(phase, "slot", response, {200, 409})


def expect(phase: Phase, name: str, response: httpx.Response, statuses: set[int]) -> None:
    phase.outcomes[name] += 1
    if response.status_code not in statuses:
        phase.faults.append(f"{name}: {response.status_code} {response.text[:200]}")


async def generate(http: httpx.AsyncClient, rng: random.Random, phase: Phase) -> None:
    body = make_request(rng, is_endless="--context-shift" in phase.flags)
    patience = rng.random() * 1.5 if rng.random() < 0.25 else None
    call = stream(http, body) if rng.random() < 0.6 else collect(http, body)
    try:
        texts = await asyncio.wait_for(call, patience)
    except TimeoutError:
        phase.outcomes["left"] += 1
        return
    phase.outcomes["finished"] += 1
    phase.answers.append((body, texts))


async def collect(http: httpx.AsyncClient, body: dict[str, Any]) -> list[str]:
    response = await http.post("/v1/completions", json=body)
    response.raise_for_status()
    choices = sorted(response.json()["choices"], key=lambda choice: int(choice["index"]))
    return [ended(choice)["text"] for choice in choices]


async def stream(http: httpx.AsyncClient, body: dict[str, Any]) -> list[str]:
    texts = ["" for _ in range(body["n"])]
    num_ended = 0
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += choice["text"]
                num_ended += choice["finish_reason"] is not None
    if num_ended != body["n"]:
        raise ValueError(f"{num_ended} of {body['n']} choices ended")
    return texts


def ended(choice: dict[str, Any]) -> dict[str, Any]:
    if choice["finish_reason"] not in ("stop", "length"):
        raise ValueError(f"ended with {choice['finish_reason']}")
    return choice


async def run_phase(phase: Phase, model: Path, rng: random.Random, seconds: float) -> None:
    with ServerProcess("-m", str(model), *phase.flags, env=phase.env) as server:
        before = rss_bytes(server.process.pid)
        until = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as http:
            randoms = [random.Random(rng.random()) for _ in range(NUM_CLIENTS)]
            await asyncio.gather(*(client(http, r, phase, until) for r in randoms))
            await check_idle(http, phase)
        if rss_bytes(server.process.pid) - before > MOST_RSS_GROWTH_BYTES:
            phase.faults.append("leaked: the process grew")
        if code := server.stop():
            phase.faults.append(f"the server ended with {code}")


async def check_idle(http: httpx.AsyncClient, phase: Phase) -> None:
    """What was parked on request comes back within its timeout; then nothing is held."""
    held = ("kv_cells_used", "preempt_ram_bytes", "requests_processing", "requests_waiting")
    figures: dict[str, float] = {}
    for _ in range(50):
        figures = parse((await http.get("/metrics")).text)
        if not any(figures[name] for name in held):
            break
        await asyncio.sleep(0.2)
    phase.faults += [f"leaked: {name} {figures[name]}" for name in held if figures[name]]
    phase.parks = int(figures["n_preempt_total"])
    phase.recomputed = int(figures["n_recompute_tokens_total"])


def parse(metrics: str) -> dict[str, float]:
    lines = [line.split() for line in metrics.splitlines() if line.startswith("llamacpp:")]
    return {name.removeprefix("llamacpp:"): float(value) for name, value in lines}


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def compare(phase: Phase, model: Path, rng: random.Random) -> int:
    """Texts of a sample, alone: one request at a time on a server of the same context."""
    shift = [flag for flag in phase.flags if flag == "--context-shift"]
    sample = rng.sample(phase.answers, min(SAMPLE, len(phase.answers)))
    with ServerProcess("-m", str(model), "-c", str(CELLS), "-np", "4", *shift) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as http:
            for body, texts in sample:
                for choice, text in enumerate(texts):
                    alone = await collect(http, {**body, "n": choice + 1})
                    if alone[choice] != text:
                        phase.faults.append(f"other text: {json.dumps(body)}")
    return len(sample)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    totals: Counter[str] = Counter()
    faults: list[str] = []
    deadline = time.monotonic() + args.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_llama(Path(folder) / "tiny.gguf", n_ctx_train=4096)
        while (left := deadline - time.monotonic()) > 5:
            phase = make_phase(rng)
            asyncio.run(run_phase(phase, model, rng, min(PHASE_S, left)))
            totals["compared"] += asyncio.run(compare(phase, model, rng))
            totals.update(phase.outcomes, parks=phase.parks, recomputed=phase.recomputed)
            faults += phase.faults
            print(
                " ".join(phase.flags), phase.env or "", dict(phase.outcomes), "parks", phase.parks
            )
            for fault in phase.faults:
                print("   ", fault)
    lost = sum(not fault.startswith(("leaked", "other text")) for fault in faults)
    leaked = sum(fault.startswith("leaked") for fault in faults)
    other = sum(fault.startswith("other text") for fault in faults)
    print(
        f"soak seed {args.seed}: requests {totals['finished'] + totals['left']}, left "
        f"{totals['left']}, parks {totals['parks']}, recomputed tokens {totals['recomputed']}, "
        f"compared {totals['compared']}, other text {other}, lost {lost}, leaked {leaked}"
    )
    return 1 if faults or not totals["parks"] else 0


if __name__ == "__main__":
    sys.exit(main())
