"""Reported tokens as llama.cpp writes them, which holds all of OpenAI's chat form."""

from collections.abc import Sequence

from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.messages import TokenInfo

LOWEST_LOGPROB = -3.4028234663852886e38  # JSON has no infinity; llama.cpp sends this instead


def token_probs(tokenizer: Tokenizer, tokens: Sequence[TokenInfo]) -> list[dict[str, object]]:
    return [
        {
            **_one(tokenizer, info.token, info.logprob),
            "top_logprobs": [_one(tokenizer, token, logprob) for token, logprob in info.top],
        }
        for info in tokens
    ]


def finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)


def _one(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, object]:
    raw = tokenizer.token_bytes(token, special=True)
    return {
        "id": token,
        "token": raw.decode("utf-8", "replace"),
        "bytes": list(raw),
        "logprob": finite(logprob),
    }
