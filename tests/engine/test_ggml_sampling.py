"""The sampling chain against a slow, literal one, and what its draws promise."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.core.plan import Draw
from kvalet.core.request import SamplingParams
from kvalet.engine import native
from kvalet.engine.ggml.sampling import sample, uniform
from kvalet.errors import EngineError

pytestmark = pytest.mark.native

LIBRARY = native.load()
NUM_VOCAB = 200


def logits_of(seed: int, spread: float = 3.0) -> npt.NDArray[np.float32]:
    """Some of them equal, so that ties happen."""
    values = np.random.default_rng(seed).normal(0, spread, NUM_VOCAB)
    return np.round(values, 1).astype(np.float32)


Pairs = list[tuple[float, int]]  # (-logit, token)


def literal(logits: npt.NDArray[np.float32], draw: Draw) -> dict[int, float]:
    """Probabilities of the tokens that may be drawn, by the book: one list, one step at a time."""
    params, values = draw.params, {i: float(value) for i, value in enumerate(logits)}
    if params.has_penalties:
        for token, count in Counter(draw.recent).items():
            value, repeat = values[token], params.repeat_penalty
            value = value * repeat if value <= 0 else value / repeat
            values[token] = value - count * params.frequency_penalty - params.presence_penalty
    for token, bias in params.logit_bias:
        values[token] = float(np.float32(values[token]) + np.float32(bias))
    kept = sorted((-value, token) for token, value in values.items() if value > -math.inf)
    kept = kept[: params.top_k or None]
    if params.typical_p < 1:
        kept = sorted(typical(kept, params.typical_p))
    if params.top_p < 1:
        kept = until(kept, lambda mass: mass >= params.top_p)
    if params.min_p > 0:
        kept = [pair for pair in kept if -pair[0] >= -kept[0][0] + math.log(params.min_p)]
    return dict(probabilities([(value / params.temperature, token) for value, token in kept]))


def probabilities(kept: Pairs) -> list[tuple[int, float]]:
    weights = [(token, math.exp(kept[0][0] - value)) for value, token in kept]
    total = sum(weight for _, weight in weights)
    return [(token, weight / total) for token, weight in weights]


def until(kept: Pairs, is_enough: Callable[[float], bool]) -> Pairs:
    mass = 0.0
    for count, (_, probability) in enumerate(probabilities(kept), 1):
        mass += probability
        if is_enough(mass):
            return kept[:count]
    return kept


def typical(kept: Pairs, wanted: float) -> Pairs:
    shares = [probability for _, probability in probabilities(kept)]
    entropy = -sum(p * math.log(p) for p in shares)
    order = sorted(range(len(kept)), key=lambda i: abs(-math.log(shares[i]) - entropy))
    mass, chosen = 0.0, []
    for index in order:
        chosen.append(kept[index])
        mass += shares[index]
        if mass > wanted:
            break
    return chosen


CHAINS = {
    "defaults": SamplingParams(),
    "temperature only": SamplingParams(temperature=1.7, top_k=0, top_p=1.0, min_p=0.0),
    "top_k": SamplingParams(temperature=1.0, top_k=5, top_p=1.0, min_p=0.0),
    "top_p": SamplingParams(temperature=1.0, top_k=0, top_p=0.6, min_p=0.0),
    "min_p": SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.2),
    "typical_p": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=0.5),
    "penalties": SamplingParams(
        repeat_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3, temperature=2.0
    ),
    "bias": SamplingParams(
        logit_bias=((3, 9.0), (4, -math.inf), (3, -1.5)), temperature=3.0, top_k=0
    ),
    "all of it": SamplingParams(
        temperature=2.5,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        typical_p=0.9,
        repeat_penalty=1.2,
        logit_bias=((10, 4.0),),
    ),
}


@pytest.mark.parametrize("params", CHAINS.values(), ids=CHAINS)
def test_draws_follow_the_chain(params: SamplingParams) -> None:
    """Every draw is the inverse of the literal chain's distribution at the draw's own number."""
    for seed in range(40):
        logits = logits_of(seed)
        draw = Draw(params, seed, recent=(7, 7, 90, 3, seed))
        expected = literal(logits, draw)
        number, reached = uniform(params, draw.index), 0.0
        token = sample(LIBRARY, logits, draw).token
        for candidate, probability in expected.items():
            reached += probability
            if number < reached:
                assert token == candidate
                break


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 250),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    typical_p=st.floats(0, 1),
)
def test_any_chain_draws_a_token_it_leaves(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float
) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p, typical_p, seed=seed)
    logits = logits_of(seed, spread=10)
    assert sample(LIBRARY, logits.copy(), Draw(params, 0)).token in literal(logits, Draw(params, 0))


def test_greedy_takes_the_lowest_of_the_largest() -> None:
    logits = logits_of(1)
    logits[[20, 30, 150]] = logits.max() + 1
    assert sample(LIBRARY, logits, Draw(SamplingParams(temperature=0.0), 0)).token == 20


def test_greedy_obeys_penalties_and_bias() -> None:
    logits = logits_of(2)
    best = int(logits.argmax())
    penalised = Draw(SamplingParams(temperature=0.0, frequency_penalty=50.0), 0, recent=(best,))
    assert sample(LIBRARY, logits.copy(), penalised).token != best
    biased = Draw(SamplingParams(temperature=0.0, logit_bias=((8, 100.0),)), 0)
    assert sample(LIBRARY, logits.copy(), biased).token == 8


def test_logprobs_are_of_the_raw_logits() -> None:
    """Not of what penalties, bias and temperature make of them."""
    logits = logits_of(3)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    params = SamplingParams(temperature=0.0, logit_bias=((8, 100.0),), num_probs=6)
    sampled = sample(LIBRARY, logits.copy(), Draw(params, 0))
    assert sampled.token == 8
    assert sampled.logprob == pytest.approx(expected[8], abs=1e-6)
    order = sorted(range(NUM_VOCAB), key=lambda token: (-logits[token], token))[:6]
    assert [token for token, _ in sampled.top] == order
    assert [value for _, value in sampled.top] == pytest.approx(expected[order], abs=1e-6)


def test_numbers_depend_on_every_part_of_the_key() -> None:
    params = SamplingParams(seed=1, prompt_index=2, choice=3)
    keys = [
        (params, 0),
        (params, 1),
        (SamplingParams(seed=2, prompt_index=2, choice=3), 0),
        (SamplingParams(seed=1, prompt_index=0, choice=3), 0),
        (SamplingParams(seed=1, prompt_index=2, choice=0), 0),
    ]
    assert len({uniform(*key) for key in keys}) == len(keys)
    numbers = [uniform(params, index) for index in range(2000)]
    assert all(0 <= number < 1 for number in numbers)
    counts = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert counts.min() > 150
    assert counts.max() < 250


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_numbers_are_refused(value: float) -> None:
    logits = logits_of(4)
    logits[:] = value
    with pytest.raises(EngineError):
        sample(LIBRARY, logits, Draw(SamplingParams(), 0))


def test_one_nan_among_the_logits_is_refused() -> None:
    logits = logits_of(5)
    logits[17] = math.nan
    with pytest.raises(EngineError):
        sample(LIBRARY, logits, Draw(SamplingParams(temperature=0.0), 0))


@pytest.mark.parametrize("token", [-1, NUM_VOCAB])
def test_a_bias_outside_the_vocabulary_is_refused(token: int) -> None:
    params = SamplingParams(logit_bias=((token, 1.0),))
    with pytest.raises(EngineError, match="logit_bias"):
        sample(LIBRARY, logits_of(6), Draw(params, 0))
