"""/completion: llama.cpp's own dialect, streamed in objects of the same form, without [DONE]."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import PlainValidator

from kvalet.core.plan import FinishReason
from kvalet.core.request import Request, SamplingParams
from kvalet.runtime.messages import Delta, Finished, TokenInfo
from kvalet.server.dialects.dialect import Choice, Defaults, Job
from kvalet.server.dialects.error import ErrorReport, error_body
from kvalet.server.dialects.figures import timings
from kvalet.server.dialects.framing import SERVER_SENT_EVENTS, sse_event
from kvalet.server.dialects.generation import GenerationBody, NumProbs, spread
from kvalet.server.dialects.head import Head
from kvalet.server.dialects.logprobs import token_probs
from kvalet.server.dialects.prompt import Prompt, parse_prompts
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


class LlamaBody(GenerationBody):
    prompt: Annotated[tuple[Prompt, ...], PlainValidator(parse_prompts)]
    n_probs: NumProbs = 0
    return_tokens: bool = False


class LlamaCpp:
    paths = ("/completion", "/completions")
    body = LlamaBody

    def parse(self, model: ServedModel, defaults: Defaults, raw: bytes) -> Job:
        body = LlamaBody.parse(raw)
        head = body.head("cmpl", model)
        tells_tokens = body.stream or body.return_tokens or body.n_probs > 0
        request = body.request(head, model, defaults, logprobs=tells_tokens, num_probs=body.n_probs)
        requests = spread(request, model, body.encoded(model, body.prompt), body.num_choices)
        answer = LlamaAnswer(
            head, model, requests, stream=body.stream, return_tokens=body.return_tokens
        )
        return Job(requests, answer, body.stream, body.sse_ping_interval)

    def error(self, report: ErrorReport) -> object:
        return error_body(report)


class LlamaAnswer:
    framing = SERVER_SENT_EVENTS

    def __init__(
        self,
        head: Head,
        model: ServedModel,
        requests: Sequence[Request],
        *,
        stream: bool,
        return_tokens: bool,
    ) -> None:
        self._head = head
        self._tokenizer = model.tokenizer
        self._n_ctx = model.service.n_ctx
        self._requests = requests
        self._prompts = [
            model.tokenizer.decode(request.prompt, special=True)
            for request in requests[:: head.num_choices]
        ]
        self._stream = stream
        self._return_tokens = return_tokens or stream
        self._num_sent = [0] * len(requests)
        self._new_line = [False] * len(requests)

    def begin(self) -> bytes:
        return b""

    def delta(self, index: int, delta: Delta) -> bytes:
        self._num_sent[index] += len(delta.tokens)
        self._new_line[index] |= "\n" in delta.content
        body = {
            "index": index,
            "content": delta.content,
            "tokens": [info.token for info in delta.tokens],
            "stop": False,
            "tokens_predicted": self._num_sent[index],
            "tokens_evaluated": len(self._requests[index].prompt),
        }
        return sse_event({**body, **self._probs(index, delta.tokens)})

    def close(self, index: int, finished: Finished) -> bytes:
        return sse_event(self._final(index, Choice(finished), self._new_line[index]))

    def end(self) -> bytes:
        return b""

    def error(self, report: ErrorReport) -> bytes:
        return sse_event(error_body(report))

    def whole(self, choices: Sequence[Choice]) -> object:
        """One object, or a list of them where several were asked for."""
        bodies = [
            {
                **self._final(index, choice, "\n" in choice.content),
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
            "content": choice.content,
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
        request = self._requests[index]
        return {
            **generation_settings(request.sampling, request.max_new_tokens, self._n_ctx),
            "stop": list(request.stop),
            "ignore_eos": request.ignore_eos,
            "n_keep": request.num_keep,
            "n_discard": request.num_discard,
            "stream": self._stream,
        }

    def _probs(self, index: int, tokens: Sequence[TokenInfo]) -> Mapping[str, object]:
        if not self._requests[index].sampling.num_probs or not tokens:
            return {}
        return {"completion_probabilities": token_probs(self._tokenizer, tokens)}
