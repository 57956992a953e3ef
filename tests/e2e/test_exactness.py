"""The same request gets the same bits, whatever happens around it (behaviour X1).

One reference answer, taken alone and without the cache; every other way to the same tokens is
compared with `==`: text, tokens and log-probabilities.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kvalet.bench.process import ServerProcess
from kvalet.core.plan import pages_for
from tests.e2e.client import complete, complete_together, get, metrics, post

pytestmark = pytest.mark.timeout(240)

Body: TypeAlias = dict[str, Any]

EVERY = 8
NUM_TOKENS = 64  # parked after 8, 16, ... 56 tokens
NUM_CYCLES = NUM_TOKENS // EVERY - 1
PROMPT = "The people of this long day have come to see how the water gets to the sea. " * 4 + "I"
NEIGHBOURS = ("No word came from him. " * 20, "How many?", "Each of them may have some. " * 9)
VARIANTS = {
    "batch of 32": ("--batch-size", "32"),
    "batch of 512": ("--batch-size", "512"),
    "one thread": ("--threads", "1"),
    "two threads": ("--threads", "2"),
}


def _greedy(prompt: str) -> Body:
    return {
        "prompt": prompt,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 3,
    }


REQUESTS = (
    _greedy(PROMPT),
    _greedy(PROMPT) | {"temperature": 0.9, "seed": 11, "top_k": 50, "repeat_penalty": 1.1},
)


@dataclass(frozen=True, slots=True)
class Case:
    flags: tuple[str, ...]
    url: str  # of a server with default flags
    answers: list[Body]  # to REQUESTS, alone


@pytest.fixture(
    scope="module", params=["tiny", pytest.param("smollm2-135m", marks=pytest.mark.model)]
)
def case(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Case]:
    flags = ("-m", str(tiny_model) if request.param == "tiny" else request.param, "-c", "2048")
    with ServerProcess(*flags) as server:
        answers = [complete(server.url, body | {"cache_prompt": False}) for body in REQUESTS]
        yield Case(flags, server.url, answers)


def test_beside_three_others(case: Case) -> None:
    others = [_greedy(prompt) for prompt in NEIGHBOURS]
    for body, answer in zip(REQUESTS, case.answers, strict=True):
        assert complete_together(case.url, [*others, body])[-1] == answer


def test_sharing_the_prompt(case: Case) -> None:
    """Two at once hold its pages together; one after them finds the pages by name."""
    assert complete_together(case.url, list(REQUESTS)) == case.answers
    again = post(case.url, "/v1/completions", REQUESTS[0])
    assert again["choices"][0] == case.answers[0]
    num_whole_pages = (again["usage"]["prompt_tokens"] - 1) // 32
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32 * num_whole_pages > 0


def test_parked_every_few_tokens(case: Case) -> None:
    """Every page comes back from the host each time, and nothing else does."""
    with ServerProcess(*case.flags, env={"LLAMA_SERVER_PREEMPT_EVERY": str(EVERY)}) as server:
        page_bytes = get(server.url, "/props")["pool"]["page_bytes"]
        moved = 0.0
        for body, answer in zip(REQUESTS, case.answers, strict=True):
            reply = post(server.url, "/v1/completions", body)
            assert reply["choices"][0] == answer
            assert reply["timings"]["n_preempt"] == NUM_CYCLES >= 6
            num_prompt = reply["usage"]["prompt_tokens"]
            cycles = range(EVERY, NUM_TOKENS, EVERY)
            moved += page_bytes * sum(pages_for(num_prompt + n - 1) for n in cycles)
        after = metrics(server.url)
        assert after["preempt_bytes_out_total"] == after["preempt_bytes_in_total"] == moved
        assert after["preempt_ram_bytes"] == 0


def test_computed_again_every_few_tokens(case: Case) -> None:
    """Nothing is copied; whatever was dropped is computed again, and nothing else is."""
    env = {"LLAMA_SERVER_PREEMPT_EVERY": str(EVERY)}
    with ServerProcess(*case.flags, "--preempt-ram", "0", env=env) as server:
        for body, answer in zip(REQUESTS, case.answers, strict=True):
            reply = post(server.url, "/v1/completions", body | {"cache_prompt": False})
            assert reply["choices"][0] == answer
            num_prompt = reply["usage"]["prompt_tokens"]
            dropped = sum(num_prompt + n - 1 for n in range(EVERY, NUM_TOKENS, EVERY))
            assert reply["timings"]["n_recompute"] == dropped
            assert reply["timings"]["n_preempt"] == NUM_CYCLES
        after = metrics(server.url)
        assert after["n_preempt_recompute_total"] == NUM_CYCLES * len(REQUESTS)
        assert after["preempt_bytes_out_total"] == after["preempt_bytes_in_total"] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_batch_sizes_and_threads(case: Case, variant: str) -> None:
    with ServerProcess(*case.flags, *VARIANTS[variant]) as server:
        assert [complete(server.url, body) for body in REQUESTS] == case.answers
