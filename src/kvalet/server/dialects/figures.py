"""What an answer says of its work beside the text: how it ended, tokens, times."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from kvalet.core.plan import FinishReason
from kvalet.runtime.messages import Finished, Timings


def finish_reason(finished: Finished) -> str:
    ended = finished.reason in (FinishReason.EOS, FinishReason.STOP_STRING)
    return "stop" if ended else "length"


def usage(results: Sequence[Finished], num_choices: int) -> dict[str, object]:
    """OpenAI's `usage` over all choices of all prompts, in their order. A prompt counts once,
    whatever the number of its choices; what the first of them computes is not `cached` for the
    others."""
    by_prompt = [results[i : i + num_choices] for i in range(0, len(results), num_choices)]
    prompt = sum(choices[0].num_prompt_tokens for choices in by_prompt)
    cached = sum(min(result.timings.cache_n for result in choices) for choices in by_prompt)
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
