"""/completion: llama.cpp's own dialect, streamed in objects of the same form, without [DONE]."""

from collections.abc import Mapping, Sequence

from kvalet.core.plan import FinishReason
from kvalet.core.request import Request, SamplingParams
from kvalet.runtime.messages import Delta, Finished, TokenInfo
from kvalet.server.answers.answer import Choice, Head, sse_data, timings, token_probs
from kvalet.server.model import ServedModel

_STOP_TYPES = {
    FinishReason.EOS: "eos",
    FinishReason.STOP_STRING: "word",
    FinishReason.LENGTH: "limit",
    FinishReason.CONTEXT: "limit",
}
_SAMPLERS = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")


def generation_settings(
    sampling: SamplingParams, max_new_tokens: int | None, n_ctx: int
) -> dict[str, object]:
    """llama.cpp's names for what decides a generation, as we would serve it."""
    limit = -1 if max_new_tokens is None else max_new_tokens
    last_n = n_ctx if sampling.repeat_last_n < 0 else sampling.repeat_last_n
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_last_n": last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": [
            {"token": token, "bias": max(bias, -1e9)} for token, bias in sampling.logit_bias
        ],
        "n_probs": sampling.num_probs,
        "samplers": list(_SAMPLERS),
        "max_tokens": limit,
        "n_predict": limit,
    }


class NativeAnswer:
    """Writes llama.cpp's dialect."""

    def __init__(
        self,
        head: Head,
        model: ServedModel,
        generations: Sequence[Request],
        *,
        stream: bool,
        return_tokens: bool,
    ) -> None:
        self._head = head
        self._tokenizer = model.tokenizer
        self._n_ctx = model.service.n_ctx
        self._generations = generations
        self._prompts = [
            model.tokenizer.decode(generation.prompt, special=True)
            for generation in generations[:: head.num_choices]
        ]
        self._stream = stream
        self._return_tokens = return_tokens or stream
        self._num_sent = [0] * len(generations)
        self._new_line = [False] * len(generations)

    def delta(self, index: int, delta: Delta) -> bytes:
        self._num_sent[index] += len(delta.tokens)
        self._new_line[index] |= "\n" in delta.text
        body = {
            "index": index,
            "content": delta.text,
            "tokens": [info.token for info in delta.tokens],
            "stop": False,
            "tokens_predicted": self._num_sent[index],
            "tokens_evaluated": len(self._generations[index].prompt),
        }
        return sse_data({**body, **self._probs(index, delta.tokens)})

    def close(self, index: int, finished: Finished) -> bytes:
        return sse_data(self._final(index, Choice(finished), self._new_line[index]))

    def end(self) -> bytes:
        return b""

    def whole(self, choices: Sequence[Choice]) -> object:
        """One object, or a list of them where several were asked for."""
        bodies = [
            {
                **self._final(index, choice, "\n" in choice.text),
                **self._probs(index, choice.tokens),
            }
            for index, choice in enumerate(choices)
        ]
        return bodies[0] if len(bodies) == 1 else bodies

    def _final(self, index: int, choice: Choice, new_line: bool) -> dict[str, object]:
        finished = choice.finished
        tokens = choice.tokens if self._return_tokens else []
        return {
            "index": index,
            "content": choice.text,
            "tokens": [info.token for info in tokens],
            "id_slot": finished.slot,
            "stop": True,
            "model": self._head.model,
            "tokens_predicted": finished.num_tokens,
            "tokens_evaluated": finished.num_prompt_tokens,
            "generation_settings": self._settings(index),
            "prompt": self._prompts[index // self._head.num_choices],
            "has_new_line": new_line,
            "truncated": finished.truncated,
            "stop_type": _STOP_TYPES[finished.reason],
            "stopping_word": finished.stopping_word,
            "tokens_cached": finished.timings.cache_n,
            "timings": timings([finished]),
        }

    def _settings(self, index: int) -> dict[str, object]:
        generation = self._generations[index]
        return {
            **generation_settings(generation.sampling, generation.max_new_tokens, self._n_ctx),
            "stop": list(generation.stop),
            "ignore_eos": generation.ignore_eos,
            "n_keep": generation.num_keep,
            "n_discard": generation.num_discard,
            "stream": self._stream,
        }

    def _probs(self, index: int, tokens: Sequence[TokenInfo]) -> Mapping[str, object]:
        if not self._generations[index].sampling.num_probs or not tokens:
            return {}
        return {"completion_probabilities": token_probs(self._tokenizer, tokens)}
