"""The default model, whole: it speaks English, and to the same last bit in any company."""

from collections.abc import Iterator

import pytest

from kvalet.core.plan import Sampled
from kvalet.engine.ggml.engine import GgmlEngine, load_engine
from kvalet.model.gguf import GGUFFile
from kvalet.model.sources import resolve
from kvalet.model.tokenizer import Tokenizer
from tests.engine.steps import Chat, chat, copy_in, copy_out, generate

pytestmark = [pytest.mark.native, pytest.mark.model]

NUM_TOKENS = 8
STORY = "It was a bright cold day in April, and the clocks were striking thirteen. " * 18


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with GGUFFile.open(resolve(None)) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def engine() -> Iterator[GgmlEngine]:
    engine = load_engine(
        GGUFFile.open(resolve(None)), num_pages=64, threads=2, poison=True, async_copies=False
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def alone(engine: GgmlEngine, tokenizer: Tokenizer) -> list[Sampled]:
    """The story goes on, past a chunk of attention, prefilled in one step."""
    lone = story(tokenizer)
    generate(engine, [lone], NUM_TOKENS)
    return lone.drawn


def story(tokenizer: Tokenizer) -> Chat:
    return chat(1, tokenizer.encode(STORY), range(16))


def test_it_knows_the_capital_of_france(engine: GgmlEngine, tokenizer: Tokenizer) -> None:
    asked = chat(1, tokenizer.encode("The capital of France is"), range(4))
    generate(engine, [asked], NUM_TOKENS)
    assert "Paris" in tokenizer.decode(asked.tokens)


def test_beside_another_chat_in_small_chunks(
    engine: GgmlEngine, tokenizer: Tokenizer, alone: list[Sampled]
) -> None:
    other = chat(2, tokenizer.encode("Once upon a time, there was"), range(40, 50))
    beside = story(tokenizer)
    generate(engine, [other, beside], NUM_TOKENS, chunk=48)
    assert beside.drawn == alone


def test_parked_and_brought_back_elsewhere(
    engine: GgmlEngine, tokenizer: Tokenizer, alone: list[Sampled]
) -> None:
    parked = story(tokenizer)
    generate(engine, [parked], NUM_TOKENS // 2)
    copy_out(engine, parked, range(20))
    copy_in(engine, parked, range(47, 31, -1), range(20))
    generate(engine, [parked], NUM_TOKENS)
    assert parked.drawn == alone
