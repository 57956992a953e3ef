"""The requests of a simulated load, sent to a real server at the times at which they arrive there.

Prompts are random tokens of the lengths that the load says, from the upper half of the vocabulary,
where SmolLM2 has no control tokens. An answer is as long as its `max_tokens`.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random

import httpx

from kvalet.bench.process import ServerProcess, model_flags
from kvalet.bench.target import server_counters
from kvalet.cli.config import settings
from kvalet.errors import EngineError
from kvalet.settings import show
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import Request

ANSWER_S = 1800.0  # answers come at once, when they are whole

# One token: a step that only generates would be the first thing the pacing of prompts knows, and a
# simulated server begins without.
WARM_UP = {"prompt": "How are you?", "n_predict": 1, "ignore_eos": True, "cache_prompt": False}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run, live or simulated."""

    makespan_s: float
    completion_s: float  # arrival to end, mean
    parks: int
    recomputed: int  # tokens


def play(scenario: Scenario, requests: Sequence[Request], model: str | None) -> Outcome:
    """On a server of its own. Raises EngineError if a request fails."""
    with ServerProcess(*model_flags(model), *flags_of(scenario)) as server:
        try:
            return asyncio.run(_play(server.url, requests))
        except httpx.HTTPError as error:
            raise EngineError(f"a request failed: {type(error).__name__}: {error}") from None


def flags_of(scenario: Scenario) -> Iterator[str]:
    """Of `kvalet serve`."""
    values = scenario.values()
    for item in settings():
        if item.name not in values or values[item.name] is None:
            continue
        flag, value = item.flags[0], values[item.name]
        if item.is_switch:
            yield flag if value else flag.replace("--", "--no-")
        else:
            yield from (flag, show(value))


async def _play(url: str, requests: Sequence[Request]) -> Outcome:
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S) as http:
        await _post(http, WARM_UP)
        num_vocab = await _num_vocab(http)
        before = await server_counters(http)
        start = time.monotonic()
        talks = [
            _converse(http, num_vocab, start, list(turns))
            for _, turns in groupby(requests, lambda request: request.conversation)
        ]
        spans = [span for spans in await asyncio.gather(*talks) for span in spans]
        counted = await server_counters(http)
    return Outcome(
        makespan_s=max(end for _, end in spans) - min(begin for begin, _ in spans),
        completion_s=statistics.fmean(end - begin for begin, end in spans),
        parks=round(counted["n_preempt_total"] - before["n_preempt_total"]),
        recomputed=round(counted["n_recompute_tokens_total"] - before["n_recompute_tokens_total"]),
    )


async def _num_vocab(http: httpx.AsyncClient) -> int:
    models = (await http.get("/v1/models")).raise_for_status().json()
    count: int = models["data"][0]["meta"]["n_vocab"]
    return count


async def _converse(
    http: httpx.AsyncClient, num_vocab: int, start: float, turns: Sequence[Request]
) -> list[tuple[float, float]]:
    """When each turn was sent and when it was answered."""
    random = Random(turns[0].conversation)
    history: list[int] = []
    spans: list[tuple[float, float]] = []
    for turn in turns:
        ended = spans[-1][1] + turn.pause_s if spans else 0.0
        await asyncio.sleep(max(start + turn.arrival_s, ended) - time.monotonic())
        history = history[: turn.num_prompt]
        num_new = turn.num_prompt - len(history)
        history += [random.randrange(num_vocab // 2, num_vocab) for _ in range(num_new)]
        begin = time.monotonic()
        history += await _post(http, body_of(turn, history))
        spans.append((begin, time.monotonic()))
    return spans


def body_of(turn: Request, prompt: Sequence[int]) -> dict[str, object]:
    return {
        "prompt": list(prompt),
        "n_predict": turn.num_output,
        "ignore_eos": True,
        "temperature": 0,
        "return_tokens": True,
    }


async def _post(http: httpx.AsyncClient, body: dict[str, object]) -> list[int]:
    response = await http.post("/completion", json=body)
    if response.is_error:
        raise EngineError(f"a request failed: {response.text}")
    tokens: list[int] = response.json()["tokens"]
    return tokens
