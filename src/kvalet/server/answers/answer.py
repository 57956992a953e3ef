"""What every dialect's answer is made of: heads, usage, timings, probabilities, SSE events.

An `Answer` writes one request's response, either piece by piece as events come or whole. It
knows neither HTTP nor where the events come from.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Protocol, Self

import orjson

from kvalet import __version__
from kvalet.core.plan import FinishReason
from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.messages import Delta, Finished, Timings, TokenInfo

LOWEST_LOGPROB = -3.4028234663852886e38  # JSON has no infinity; llama.cpp sends this instead
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Choice:
    """Everything one sequence said."""

    finished: Finished
    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list[TokenInfo])


class Answer(Protocol):
    """Streaming: `delta` and `close` per sequence as they come, then `end`. Or `whole`."""

    def delta(self, index: int, delta: Delta) -> bytes: ...

    def close(self, index: int, finished: Finished) -> bytes: ...

    def end(self) -> bytes: ...

    def whole(self, choices: Sequence[Choice]) -> object: ...


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of one response have in common."""

    request_id: str
    created: int  # Unix seconds
    model: str
    seed: int
    num_choices: int  # of each prompt

    @classmethod
    def new(cls, prefix: str, model: str, seed: int, num_choices: int) -> Self:
        created = int(datetime.now(UTC).timestamp())
        return cls(f"{prefix}-{uuid.uuid4().hex}", created, model, seed, num_choices)

    def fields(self, kind: str) -> dict[str, object]:
        """The head of an OpenAI object of type `kind`."""
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"kvalet-{__version__}",
        }


def sse_data(body: object) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def finish_reason(finished: Finished) -> str:
    ended = finished.reason in (FinishReason.EOS, FinishReason.STOP_STRING)
    return "stop" if ended else "length"


def usage(results: Sequence[Finished], num_choices: int) -> dict[str, object]:
    """OpenAI's `usage` over all choices of all prompts, in their order. A prompt counts once,
    whatever the number of its choices; what the first of them computes is not `cached` for the
    others."""
    families = [results[i : i + num_choices] for i in range(0, len(results), num_choices)]
    prompt = sum(family[0].num_prompt_tokens for family in families)
    cached = sum(min(result.timings.cache_n for result in family) for family in families)
    completion = sum(result.num_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(results: Iterable[Finished]) -> dict[str, object]:
    """llama.cpp's `timings`, summed over the sequences of a request, and ours beside them."""
    all_ = [result.timings for result in results]
    total = Timings(*(sum(getattr(one, f.name) for one in all_) for f in fields(Timings)))
    return {
        **asdict(total),
        "prompt_per_token_ms": _ratio(total.prompt_ms, total.prompt_n),
        "prompt_per_second": 1e3 * _ratio(total.prompt_n, total.prompt_ms),
        "predicted_per_token_ms": _ratio(total.predicted_ms, total.predicted_n),
        "predicted_per_second": 1e3 * _ratio(total.predicted_n, total.predicted_ms),
    }


def _ratio(amount: float, unit: float) -> float:
    return amount / unit if unit else 0.0


def token_probs(tokenizer: Tokenizer, tokens: Sequence[TokenInfo]) -> list[dict[str, object]]:
    """llama.cpp's form of reported tokens, which holds all of OpenAI's chat form."""
    return [
        {
            **_one(tokenizer, info.token, info.logprob),
            "top_logprobs": [_one(tokenizer, token, logprob) for token, logprob in info.top],
        }
        for info in tokens
    ]


def _one(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, object]:
    raw = tokenizer.token_bytes(token, special=True)
    return {
        "id": token,
        "token": raw.decode("utf-8", "replace"),
        "bytes": list(raw),
        "logprob": finite(logprob),
    }


def finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)
