"""ADR 0003: what is computed for a token depends on the tokens before it and on nothing else, to
the last bit. Every test compares all drawn tokens and log-probabilities with `==`."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from kvalet.core.plan import PageCopy, PageId, Sampled, StepPlan
from kvalet.core.request import SamplingParams
from kvalet.engine.ggml.engine import GgmlEngine, load_engine
from kvalet.model.gguf import GGUFFile
from tests.engine.steps import ALL_LOGPROBS, Chat, chat, copy_in, copy_out, generate, step
from tests.engine.tiny_models import write_tiny_llama

pytestmark = pytest.mark.native

NUM_PAGES = 64
COUNT = 12  # tokens drawn
WARM = SamplingParams(temperature=1.2, top_k=0, top_p=0.98, seed=5, logprobs=True, num_probs=3)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 640, length)]


# Past one chunk of attention, and not a whole number of pages. The second has its own length.
LONG, SHORT = prompt(301), prompt(45, seed=1)


@pytest.fixture(scope="module", params=["F32", "F16", "Q8_0", "Q4_1", "Q4_0", "Q4_K"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GgmlEngine]:
    """Q4_0 and Q4_K are repacked, the latter with a column granularity of 4."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_llama(path, weight_type=request.param, n_layer=2)
    engine = load_engine(
        GGUFFile.open(path), num_pages=NUM_PAGES, threads=2, poison=True, async_copies=False
    )
    yield engine
    engine.close()


def alone(
    engine: GgmlEngine, tokens: Sequence[int], params: SamplingParams = ALL_LOGPROBS
) -> list[Sampled]:
    lone = chat(9, tokens, range(20), params)
    generate(engine, [lone], COUNT)
    forget(engine, lone)
    return lone.drawn


def forget(engine: GgmlEngine, *chats: Chat) -> None:
    for chat_ in chats:
        engine.execute(StepPlan(0, freed=chat_.pages))


@pytest.mark.parametrize("chunk", [7, 32, 64])
def test_chunks_of_a_prompt(engine: GgmlEngine, chunk: int) -> None:
    expected = alone(engine, LONG)
    chunked = chat(1, LONG, range(20, 40))
    generate(engine, [chunked], COUNT, chunk)
    forget(engine, chunked)
    assert chunked.drawn == expected


def test_a_token_at_a_time_is_a_prefill(engine: GgmlEngine) -> None:
    expected = alone(engine, SHORT)
    slow = chat(1, SHORT, range(20))
    generate(engine, [slow], COUNT, chunk=1)
    forget(engine, slow)
    assert slow.drawn == expected


def test_pages_in_any_place(engine: GgmlEngine) -> None:
    expected = alone(engine, LONG)
    pages = [int(page) for page in np.random.default_rng(3).permutation(NUM_PAGES)[:20]]
    scattered = chat(1, LONG, pages)
    generate(engine, [scattered], COUNT)
    forget(engine, scattered)
    assert scattered.drawn == expected


@pytest.mark.parametrize("num_neighbours", [1, 2, 3, 6])
def test_neighbours_of_other_lengths(engine: GgmlEngine, num_neighbours: int) -> None:
    expected = alone(engine, SHORT)
    chats = [
        chat(i, prompt(20 + 31 * i, seed=i), range(6 * i, 6 * i + 6)) for i in range(num_neighbours)
    ]
    chats.append(chat(9, SHORT, range(50, 60)))
    generate(engine, chats, COUNT, chunk=16)
    forget(engine, *chats)
    assert chats[-1].drawn == expected


def test_a_neighbour_that_prefills_while_others_decode(engine: GgmlEngine) -> None:
    expected = alone(engine, SHORT), alone(engine, LONG)
    early, late = chat(1, SHORT, range(10)), chat(2, LONG, range(30, 50))
    generate(engine, [early], 3)
    generate(engine, [late, early], COUNT, chunk=64)
    forget(engine, early, late)
    assert (early.drawn, late.drawn) == expected


def test_parked_every_four_tokens(engine: GgmlEngine) -> None:
    expected = alone(engine, LONG)
    parked = chat(1, LONG, range(20))
    for cycle in range(1, COUNT // 4 + 1):
        generate(engine, [parked], 4 * cycle, chunk=100)
        copy_out(engine, parked, range(40))
        start = 7 * cycle
        copy_in(engine, parked, range(start, start + 20), range(40))
    forget(engine, parked)
    assert parked.drawn == expected


def test_recomputed_from_the_first_token(engine: GgmlEngine) -> None:
    expected = alone(engine, LONG)
    dropped = chat(1, LONG, range(20))
    generate(engine, [dropped], 5)
    forget(engine, dropped)
    dropped.num_computed = 0
    generate(engine, [dropped], COUNT, chunk=33)
    forget(engine, dropped)
    assert dropped.drawn == expected


def test_a_shared_prefix_and_a_copy_before_write(engine: GgmlEngine) -> None:
    """Two sequences hold the full pages of one prompt; the page both would write is copied."""
    expected = alone(engine, LONG, params=WARM)
    first = chat(1, LONG, range(20), params=WARM)
    step(engine, [first], 512)
    page, copy = first.pages[9], PageId(50)
    engine.execute(StepPlan(0, page_copies=(PageCopy(page, copy),)))
    table = (*first.pages[:9], copy, *range(51, 55))
    second = chat(2, LONG, table, params=WARM, num_computed=len(LONG) - 1)
    generate(engine, [second, first], COUNT)
    forget(engine, first, second)
    assert first.drawn == second.drawn == expected


def test_random_draws(engine: GgmlEngine) -> None:
    expected = alone(engine, SHORT, params=WARM)
    chats = [chat(1, LONG, range(20)), chat(2, SHORT, range(30, 40), params=WARM)]
    generate(engine, chats, COUNT, chunk=24)
    forget(engine, *chats)
    assert chats[1].drawn == expected
    assert len({sampled.token for sampled in expected}) > 3


@pytest.mark.parametrize("weight_type", ["F16", "Q4_0"])
def test_threads_and_step_sizes(weight_type: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type=weight_type)

    def drawn(load: Callable[[], GgmlEngine]) -> list[Sampled]:
        engine = load()
        chats = [chat(1, LONG, range(20)), chat(2, SHORT, range(30, 40))]
        generate(engine, chats, COUNT, chunk=16)
        engine.close()
        return chats[0].drawn + chats[1].drawn

    expected = drawn(lambda: load_engine(GGUFFile.open(path), num_pages=NUM_PAGES, threads=1))
    assert (
        drawn(lambda: load_engine(GGUFFile.open(path), num_pages=NUM_PAGES, threads=2)) == expected
    )
    assert (
        drawn(lambda: load_engine(GGUFFile.open(path), num_pages=50, threads=3, max_step_tokens=32))
        == expected
    )
