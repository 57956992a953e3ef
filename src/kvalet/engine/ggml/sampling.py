"""Draws one token from a row of logits, the way llama.cpp's server does.

Penalties, logit bias, top_k, typical_p, top_p, min_p, temperature, in this order. A draw is a pure
function of the row and of its key; ties go to the lower id. What touches the whole vocabulary is
native; numpy works on the candidates that are left.
"""

import hashlib
import math
from typing import Any, TypeAlias

import numpy as np

from kvalet.core.plan import Draw, Sampled
from kvalet.core.request import SamplingParams
from kvalet.engine.native import NativeLibrary
from kvalet.errors import EngineError

Row: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


def sample(native: NativeLibrary, logits: Row, draw: Draw, allowed: bytes | None = None) -> Sampled:
    """Draw from f32 `logits` [num_vocab]; they are changed on the way. `allowed` as in `DrawMask`.
    Raises EngineError where no token can be drawn."""
    if not math.isfinite(logits.max()):  # NaN if any of them is
        raise EngineError("the model computed logits that are not numbers")
    params = draw.params
    reports = params.logprobs or params.num_probs
    raw = logits.copy() if reports and (_is_adjusted(params) or allowed is not None) else logits
    if allowed is not None:
        _forbid(logits, allowed)
    if not reports:
        return Sampled(_choose(native, logits, draw))
    token = _choose(native, logits, draw)
    log_total = native.logsumexp(raw)
    return Sampled(
        token, float(raw[token]) - log_total, _most_likely(native, raw, log_total, params.num_probs)
    )


def uniform(params: SamplingParams, index: int) -> float:
    """The draw's random number in [0, 1), 53 bits, from its key alone."""
    key = f"{params.seed},{params.prompt_index},{params.choice},{index}".encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)


def _choose(native: NativeLibrary, logits: Row, draw: Draw) -> int:
    params = draw.params
    if _is_adjusted(params):
        _adjust(native, logits, draw)
    if params.temperature <= 0:
        token = native.argmax(logits)
        _require_candidate(logits[token])
        return token
    ids, values = native.top_k(logits, params.top_k)
    _require_candidate(values[0])
    candidates = values[: np.count_nonzero(values > -np.inf)].astype(np.float64)
    kept = _filter(candidates, params)
    weights = np.exp((candidates[kept] - candidates[kept[0]]) / params.temperature)
    return int(ids[kept[_pick(weights, uniform(params, draw.index))]])


def _most_likely(
    native: NativeLibrary, logits: Row, log_total: float, count: int
) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    ids, values = native.top_k(logits, count)
    return tuple((int(i), float(v) - log_total) for i, v in zip(ids, values, strict=True))


def _require_candidate(best: np.float32) -> None:
    if best == -np.inf:
        raise EngineError("every token is banned, by the logit bias or by what may come next")


def _forbid(logits: Row, allowed: bytes) -> None:
    bits = np.frombuffer(allowed, np.uint8)
    if bits.size * 8 < len(logits):
        raise EngineError(f"a mask of {bits.size * 8} tokens for a vocabulary of {len(logits)}")
    logits[np.unpackbits(bits, count=len(logits), bitorder="little") == 0] = -np.inf


def _is_adjusted(params: SamplingParams) -> bool:
    return params.has_penalties or bool(params.logit_bias)


def _adjust(native: NativeLibrary, logits: Row, draw: Draw) -> None:
    params = draw.params
    if params.has_penalties:
        ids, counts = np.unique(np.array(draw.recent, np.int32), return_counts=True)
        _require_vocabulary(ids, len(logits), "recent")
        native.penalize(
            logits,
            ids,
            counts.astype(np.int32),
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
    if params.logit_bias:
        ids = np.array([token for token, _ in params.logit_bias], np.int32)
        _require_vocabulary(ids, len(logits), "logit_bias")
        np.add.at(logits, ids, np.array([bias for _, bias in params.logit_bias], np.float32))


def _require_vocabulary(ids: Ids, num_vocab: int, field: str) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= num_vocab):
        raise EngineError(f"{field} names a token outside the vocabulary of {num_vocab}")


def _filter(candidates: Floats, params: SamplingParams) -> Indices:
    """Which of the candidates (descending) may be drawn, at least one, in the same order."""
    kept = np.arange(len(candidates))
    if params.typical_p < 1:
        kept = _typical(candidates, params.typical_p)
    if params.top_p < 1:
        reached = np.cumsum(_softmax(candidates[kept]))
        kept = kept[: np.searchsorted(reached, params.top_p) + 1]
    if params.min_p > 0:
        least = candidates[kept[0]] + math.log(params.min_p)
        kept = kept[: max(1, np.count_nonzero(candidates[kept] >= least))]
    return kept


def _typical(candidates: Floats, mass: float) -> Indices:
    """Those whose surprise is closest to the expected one, up to `mass` of the probability."""
    logs = candidates - candidates[0]
    logs -= math.log(np.exp(logs).sum())
    probabilities = np.exp(logs)
    entropy = -(probabilities * logs).sum()
    order = np.argsort(np.abs(-logs - entropy), kind="stable")
    reached = np.cumsum(probabilities[order])
    return np.sort(order[: np.searchsorted(reached, mass, side="right") + 1])


def _softmax(values: Floats) -> Floats:
    weights: Floats = np.exp(values - values[0])
    weights /= weights.sum()
    return weights


def _pick(weights: Floats, number: float) -> int:
    """Inverse of the cumulative distribution at `number` in [0, 1)."""
    reached = np.cumsum(weights)
    index = np.searchsorted(reached, number * reached[-1], side="right")
    return min(int(index), len(weights) - 1)
