"""Second turns find the first one's pages and nobody else's (behaviour C2, C3, X1).

Every answer is compared, tokens too, with that of a server which keeps nothing.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import httpx
import pytest

from kvalet.bench.process import ServerProcess
from kvalet.core.plan import PAGE_CELLS
from tests.e2e.client import TIMEOUT_S, metrics, post
from tests.engine.tiny_models import write_tiny_llama

Tokens: TypeAlias = list[int]
Body: TypeAlias = dict[str, Any]

POOL = ("-c", "512")  # 16 pages
FIRST_TURN = [21 + i * 7 % 190 for i in range(200)]
QUESTION = [30 + i * 11 % 190 for i in range(45)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its pages are of 64 KiB: a MiB of cache holds as many as the pool does."""
    path = tmp_path_factory.mktemp("models") / "wide.gguf"
    return write_tiny_llama(path, n_kv_head=4, head_dim=64)


@dataclass(frozen=True, slots=True)
class Quiet:
    """A server that keeps nothing of a request, for requests alone."""

    url: str

    def answer(self, prompt: Tokens, num_tokens: int) -> Tokens:
        body = request(prompt, num_tokens) | {"cache_prompt": False}
        answer: Tokens = post(self.url, "/completion", body)["tokens"]
        return answer


@pytest.fixture(scope="module")
def quiet(model: Path) -> Iterator[Quiet]:
    with serve(model, "-c", "2048", "--cache-ram", "0") as server:
        yield Quiet(server.url)


def serve(model: Path, *flags: str) -> ServerProcess:
    return ServerProcess("-m", str(model), "-t", "1", "--check", *flags)


def request(prompt: Tokens, num_tokens: int, **more: object) -> Body:
    settings = {"n_predict": num_tokens, "temperature": 0, "ignore_eos": True}
    return {"prompt": prompt, "return_tokens": True, **settings, **more}


def ask(url: str, prompt: Tokens, num_tokens: int, **more: object) -> tuple[Tokens, int]:
    """The answer, and how many tokens of the prompt were found."""
    answer = post(url, "/completion", request(prompt, num_tokens, **more))
    timings = answer["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == len(prompt)
    assert timings["cache_n"] == answer["tokens_cached"]
    return answer["tokens"], timings["cache_n"]


@dataclass(frozen=True, slots=True)
class TwoTurns:
    first: Tokens
    second: Tokens  # the first with its answer and a question
    num_kept: int  # tokens of the first turn in whole pages
    answer: Tokens

    def check(self, url: str) -> dict[str, float]:
        """Ask the second; returns what the server counted meanwhile."""
        before = metrics(url)
        answer, num_cached = ask(url, self.second, 20, id_slot=0)
        after = metrics(url)
        assert (answer, num_cached) == (self.answer, self.num_kept)
        return {name: after[name] - before[name] for name in after}


@pytest.fixture(scope="module")
def turns(quiet: Quiet) -> TwoTurns:
    said = quiet.answer(FIRST_TURN, 40)
    second = [*FIRST_TURN, *said, *QUESTION]
    num_kept = (
        (len(FIRST_TURN) + len(said) - 1) // PAGE_CELLS * PAGE_CELLS
    )  # the last is drawn only
    return TwoTurns(FIRST_TURN, second, num_kept, quiet.answer(second, 20))


def test_in_the_pool(model: Path, turns: TwoTurns) -> None:
    with serve(model, *POOL) as server:
        ask(server.url, turns.first, 40, id_slot=0)
        counted = turns.check(server.url)
    assert counted["prefix_pages_pool_total"] == turns.num_kept / PAGE_CELLS
    assert counted["prefix_pages_host_total"] == 0


def test_in_the_host_store(model: Path, turns: TwoTurns) -> None:
    """Other chats come and go until the pool has nothing of the first turn left."""
    with serve(model, *POOL) as server:
        ask(server.url, turns.first, 40, id_slot=0)
        for salt in range(8):  # of three pages each
            ask(server.url, [20 + (salt * 31 + i * 13) % 200 for i in range(40)], 56, id_slot=1)
        counted = turns.check(server.url)
    assert counted["prefix_pages_pool_total"] == 0
    assert counted["prefix_pages_host_total"] == turns.num_kept / PAGE_CELLS


def test_pages_that_found_no_place_on_the_host_are_computed(model: Path, turns: TwoTurns) -> None:
    with serve(model, *POOL, "--cache-ram", "0") as server:
        ask(server.url, turns.first, 40, id_slot=0)
        for salt in range(8):
            ask(server.url, [20 + (salt * 31 + i * 13) % 200 for i in range(40)], 56, id_slot=1)
        assert ask(server.url, turns.second, 20) == (turns.answer, 0)
        assert metrics(server.url)["host_store_bytes"] == 0


def test_on_disk_past_a_restart(model: Path, turns: TwoTurns, tmp_path: Path) -> None:
    saving = ("--slot-save-path", str(tmp_path))
    name = {"filename": "turn one.kvalet"}
    with serve(model, *POOL, *saving) as server:
        ask(server.url, turns.first, 40, id_slot=0)
        saved = post(server.url, "/slots/0?action=save", name)
    assert saved["n_saved"] == turns.num_kept
    assert saved["n_written"] == (tmp_path / name["filename"]).stat().st_size
    with serve(model, *POOL, *saving) as server:
        restored = post(server.url, "/slots/0?action=restore", name)
        assert restored["n_restored"] == turns.num_kept
        counted = turns.check(server.url)
        assert counted["prefix_pages_host_total"] == turns.num_kept / PAGE_CELLS
        assert metrics(server.url)["preempt_ram_bytes"] == 0


def test_an_erased_slot_is_cold(model: Path, turns: TwoTurns) -> None:
    with serve(model, *POOL) as server:
        ask(server.url, turns.first, 40, id_slot=0)
        erased = post(server.url, "/slots/0?action=erase", {})
        assert erased["n_erased"] == turns.num_kept
        assert ask(server.url, turns.second, 20) == (turns.answer, 0)


NUM_CONVERSATIONS = 50
NUM_TURNS = 3
SHARED = [20 + i for i in range(70)]  # what every second conversation begins with


@dataclass(slots=True)
class Conversation:
    """Prompts and answers as they are without a cache. Its secret is a number in its first turn."""

    secret: str
    turns: list[tuple[Tokens, Tokens]] = field(default_factory=list[tuple[Tokens, Tokens]])

    @classmethod
    def alone(cls, number: int, random: Random, url: str) -> "Conversation":
        self = cls(f"{random.randrange(10**8):08}")
        prompt = list(SHARED) if number % 2 else []
        prompt += tokenized(url, f"Remember {self.secret}, which only I know. ")
        for _ in range(NUM_TURNS):
            prompt = prompt + random.choices(range(20, 250), k=random.randrange(10, 60))
            answer = Quiet(url).answer(prompt, random.randrange(5, 40))
            self.turns.append((prompt, answer))
            prompt = prompt + answer
        return self


def tokenized(url: str, text: str) -> Tokens:
    tokens: Tokens = post(url, "/tokenize", {"content": text})["tokens"]
    return tokens


def detokenized(url: str, tokens: Tokens) -> str:
    return str(post(url, "/detokenize", {"tokens": tokens})["content"])


@pytest.fixture(scope="module")
def conversations(quiet: Quiet) -> list[Conversation]:
    random = Random(5)
    return [Conversation.alone(number, random, quiet.url) for number in range(NUM_CONVERSATIONS)]


def shuffled_turns(
    conversations: list[Conversation], random: Random
) -> list[list[tuple[Tokens, Tokens]]]:
    """All turns in random order, each conversation's in its own; one to three are asked at once."""
    order = [number for number in range(len(conversations)) for _ in range(NUM_TURNS)]
    random.shuffle(order)
    left = [iter(conversation.turns) for conversation in conversations]
    groups: list[list[tuple[Tokens, Tokens]]] = []
    waiting = iter(order)
    while together := list(islice(waiting, random.randint(1, 3))):
        for number in range(max(map(together.count, together))):
            once = [one for one in set(together) if together.count(one) > number]
            groups.append([next(left[one]) for one in sorted(once)])
    return groups


def prefixes(tokens: Tokens) -> list[tuple[int, ...]]:
    """Its whole pages, each with all that is before it."""
    ends = range(PAGE_CELLS, len(tokens) + 1, PAGE_CELLS)
    return [tuple(tokens[:end]) for end in ends]


@pytest.mark.parametrize("cache_ram", ["1", "0"])
def test_no_conversation_gets_what_is_another_s(
    model: Path, quiet: Quiet, conversations: list[Conversation], cache_ram: str
) -> None:
    known: set[tuple[int, ...]] = set()
    num_found = 0
    with (
        serve(model, *POOL, "--cache-ram", cache_ram) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        for group in shuffled_turns(conversations, Random(7)):
            for prompt, _ in group:
                known.update(prefixes(prompt))
            asked = [pool.submit(ask, server.url, p, len(answer)) for p, answer in group]
            for (prompt, answer), reply in zip(group, asked, strict=True):
                said, num_cached = reply.result(TIMEOUT_S)
                assert said == answer
                most = len([page for page in prefixes(prompt[:-1]) if page in known])
                assert num_cached % PAGE_CELLS == 0
                assert num_cached <= most * PAGE_CELLS
                num_found += num_cached
                known.update(prefixes(prompt + answer))
        after = metrics(server.url)
    found = {tier: after[f"prefix_pages_{tier}_total"] for tier in ("pool", "host", "missed")}
    assert found["pool"] > 0
    assert (found["host"] > 0) == (cache_ram != "0")
    assert 0 < (found["pool"] + found["host"]) * PAGE_CELLS <= num_found  # more beside each other
    assert after["host_store_bytes"] <= int(cache_ram) << 20
    texts = [detokenized(quiet.url, said) for c in conversations for _, said in c.turns]
    assert not [c.secret for c in conversations if any(c.secret in text for text in texts)]


def test_an_open_stream_does_not_keep_a_second_turn_from_its_pages(
    model: Path, turns: TwoTurns
) -> None:
    with (
        serve(model, *POOL) as server,
        httpx.Client(timeout=TIMEOUT_S) as http,
    ):
        ask(server.url, turns.first, 40, id_slot=0)
        other = request(QUESTION, 150, id_slot=1) | {"stream": True}
        with http.stream("POST", f"{server.url}/completion", json=other) as stream:
            assert any(line.startswith("data: ") for line in stream.iter_lines())
            turns.check(server.url)
