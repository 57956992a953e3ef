"""From a request's body to sequences to generate, for each of the three dialects.

A job is complete: nothing of the body is looked at afterwards. Building one is pure work for a
worker thread; it fails with a RequestError that names a field.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvalet.core.request import Request, SamplingParams
from kvalet.errors import RequestError
from kvalet.server.answers.answer import Answer, Head
from kvalet.server.answers.chat import ChatAnswer
from kvalet.server.answers.completion import CompletionAnswer
from kvalet.server.answers.native import NativeAnswer
from kvalet.server.model import ServedModel
from kvalet.server.prompts import encode_bias, encode_chat, encode_prompt
from kvalet.server.wire.generation import RANDOM_SEEDS, GenerationFields
from kvalet.server.wire.llamacpp import NativeRequest
from kvalet.server.wire.openai import ChatRequest, CompletionRequest
from kvalet.server.wire.prompt import Prompt

MAX_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class Job:
    """The sequences of one request and how their events become an answer."""

    generations: tuple[Request, ...]  # the choices of the first prompt, of the second, ...
    answer: Answer
    stream: bool
    sse_ping_interval_s: float | None  # None: the server's


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server's flags say for requests that do not."""

    max_new_tokens: int | None = None


BuildJob: TypeAlias = Callable[[ServedModel, Defaults, bytes], Job]


def chat_job(model: ServedModel, defaults: Defaults, body: bytes) -> Job:
    """POST /v1/chat/completions."""
    request = ChatRequest.parse(body)
    sampling = _sampling(model, request, request.logprobs, request.top_logprobs)
    head = Head.new("chatcmpl", model.name, sampling.seed, request.num_choices)
    prompts = [encode_chat(model, request)]
    generations = _generations(model, request, defaults, head, sampling, prompts)
    usage = request.stream_options.include_usage
    answer = ChatAnswer(head, model.tokenizer, sampling.logprobs, usage)
    return Job(generations, answer, request.stream, request.sse_ping_interval)


def completion_job(model: ServedModel, defaults: Defaults, body: bytes) -> Job:
    """POST /v1/completions."""
    request = CompletionRequest.parse(body)
    sampling = _sampling(model, request, request.logprobs is not None, request.logprobs or 0)
    head = Head.new("cmpl", model.name, sampling.seed, request.num_choices)
    prompts = _encoded(model, request, request.prompt)
    generations = _generations(model, request, defaults, head, sampling, prompts)
    usage = request.stream_options.include_usage
    answer = CompletionAnswer(head, model.tokenizer, sampling.logprobs, usage)
    return Job(generations, answer, request.stream, request.sse_ping_interval)


def native_job(model: ServedModel, defaults: Defaults, body: bytes) -> Job:
    """POST /completion."""
    request = NativeRequest.parse(body)
    tells_tokens = request.stream or request.return_tokens or request.n_probs > 0
    sampling = _sampling(model, request, tells_tokens, request.n_probs)
    head = Head.new("cmpl", model.name, sampling.seed, request.num_choices)
    prompts = _encoded(model, request, request.prompt)
    generations = _generations(model, request, defaults, head, sampling, prompts)
    answer = NativeAnswer(
        head, model, generations, stream=request.stream, return_tokens=request.return_tokens
    )
    return Job(generations, answer, request.stream, request.sse_ping_interval)


def _encoded(
    model: ServedModel, request: GenerationFields, prompts: Sequence[Prompt]
) -> list[tuple[int, ...]]:
    if len(prompts) * request.num_choices > MAX_SEQUENCES:
        field = "n_cmpl" if request.n_cmpl else "n"
        raise RequestError(
            f"'{field}': {request.num_choices} choices of {len(prompts)} prompts are more than "
            f"the {MAX_SEQUENCES} that one request may ask for",
            field,
        )
    return [encode_prompt(model, prompt) for prompt in prompts]


def _sampling(
    model: ServedModel, request: GenerationFields, logprobs: bool, num_probs: int
) -> SamplingParams:
    random = request.seed in RANDOM_SEEDS
    return SamplingParams(
        temperature=request.temperature,
        top_k=max(request.top_k, 0),
        top_p=request.top_p,
        min_p=request.min_p,
        typical_p=request.typical_p,
        repeat_penalty=request.repeat_penalty,
        repeat_last_n=request.repeat_last_n,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=encode_bias(model.tokenizer, request.logit_bias),
        seed=secrets.randbits(31) if random else request.seed,
        num_probs=num_probs,
        logprobs=logprobs,
    )


def _generations(
    model: ServedModel,
    request: GenerationFields,
    defaults: Defaults,
    head: Head,
    sampling: SamplingParams,
    prompts: Sequence[tuple[int, ...]],
) -> tuple[Request, ...]:
    return tuple(
        Request(
            request_id=head.request_id,
            prompt=prompt,
            max_new_tokens=request.max_new_tokens(defaults.max_new_tokens),
            sampling=replace(sampling, prompt_index=number, choice=choice),
            stop=request.stop,
            ignore_eos=request.ignore_eos,
            cache_prompt=request.cache_prompt,
            id_slot=request.id_slot if request.id_slot >= 0 else None,
            priority=request.priority,
            index=number * head.num_choices + choice,
            num_keep=_num_kept(model, request.n_keep, prompt),
            num_discard=request.n_discard,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(head.num_choices)
    )


def _num_kept(model: ServedModel, n_keep: int, prompt: tuple[int, ...]) -> int:
    """As in llama.cpp, a client does not count the BOS, and it is always kept."""
    has_bos = bool(prompt) and prompt[0] == model.tokenizer.bos_id
    return n_keep + 1 if has_bos and n_keep >= 0 else n_keep
