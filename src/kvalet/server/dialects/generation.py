"""What the dialects of OpenAI's completions and of llama.cpp share: sampling, limits, stops.

From their fields to requests. Defaults are `SamplingParams`' own. A model name is not checked: one
model is served, whatever a client calls it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, field_validator

from kvalet.core.request import Request, SamplingParams
from kvalet.errors import RequestError
from kvalet.server.dialects.body import Body
from kvalet.server.dialects.dialect import Defaults
from kvalet.server.dialects.encoding import encode_bias, encode_prompt
from kvalet.server.dialects.head import Head
from kvalet.server.dialects.prompt import Bias, Prompt, parse_logit_bias, parse_stop
from kvalet.server.model import ServedModel

DEFAULTS = SamplingParams()
MAX_PROBS = 100
MAX_CHOICES = 64
MAX_SEQUENCES = 256
MIN_PING_S = 0.1
RANDOM_SEEDS = (-1, 2**32 - 1)  # llama.cpp's ways to ask for one

TokenLimit = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Penalty = Annotated[float, Field(ge=-100, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
NumProbs = Annotated[int, Field(ge=0, le=MAX_PROBS)]
NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]


def _check_ping(seconds: float) -> float:
    if not (seconds >= MIN_PING_S or seconds in (0, -1)):
        raise ValueError(f"expected at least {MIN_PING_S} seconds, or 0 or -1 for none")
    return seconds


class StreamOptions(Body):
    include_usage: bool = False


class GenerationBody(Body):
    model: str = ""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    sse_ping_interval: Annotated[float, Field(le=1e9), AfterValidator(_check_ping)] | None = None

    n_cmpl: NumChoices | None = None
    n: NumChoices | None = None
    best_of: int | None = None

    n_predict: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(parse_stop)] = ()
    ignore_eos: bool = False

    temperature: Annotated[float, Field(ge=0, le=1e6)] = DEFAULTS.temperature
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = DEFAULTS.top_k
    top_p: Share = DEFAULTS.top_p
    min_p: Share = DEFAULTS.min_p
    typical_p: Share = DEFAULTS.typical_p
    repeat_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] = DEFAULTS.repeat_penalty
    repeat_last_n: Annotated[int, Field(ge=-1, le=2**31 - 1)] = DEFAULTS.repeat_last_n
    presence_penalty: Penalty = DEFAULTS.presence_penalty
    frequency_penalty: Penalty = DEFAULTS.frequency_penalty
    logit_bias: Annotated[tuple[Bias, ...], PlainValidator(parse_logit_bias)] = ()
    seed: Annotated[int, Field(ge=-1, lt=2**63)] = -1

    cache_prompt: bool = True
    id_slot: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    n_keep: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 0
    n_discard: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0

    @field_validator("best_of")
    @classmethod
    def _only_as_many_as_returned(cls, number: int, info: ValidationInfo) -> int:
        asked = info.data.get("n_cmpl") or info.data.get("n") or 1
        if number != 1 or asked != 1:
            raise ValueError("choosing among more choices than are returned is not supported")
        return number

    @property
    def num_choices(self) -> int:
        """For each prompt. llama.cpp's precedence of its name over OpenAI's."""
        return self.n_cmpl or self.n or 1

    def head(self, prefix: str, model: ServedModel) -> Head:
        seed = None if self.seed in RANDOM_SEEDS else self.seed
        return Head.new(prefix, model.name, seed, self.num_choices)

    def request(
        self, head: Head, model: ServedModel, defaults: Defaults, *, logprobs: bool, num_probs: int
    ) -> Request:
        """What is asked for, of whatever prompt. `num_probs`: tokens reported beside each drawn."""
        return Request(
            request_id=head.request_id,
            prompt=(),
            max_new_tokens=self._limit(defaults.max_new_tokens),
            sampling=self._sampling(head, model, logprobs, num_probs),
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            cache_prompt=self.cache_prompt,
            id_slot=self.id_slot if self.id_slot >= 0 else None,
            priority=self.priority,
            num_keep=self.n_keep,
            num_discard=self.n_discard,
        )

    def encoded(self, model: ServedModel, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """The tokens of texts and ids. Raises RequestError for more than one request may ask."""
        if len(prompts) * self.num_choices > MAX_SEQUENCES:
            field = "n_cmpl" if self.n_cmpl else "n"
            raise RequestError(
                f"'{field}': {self.num_choices} choices of {len(prompts)} prompts are more than "
                f"the {MAX_SEQUENCES} that one request may ask for",
                field,
            )
        return [encode_prompt(model, prompt) for prompt in prompts]

    def _sampling(
        self, head: Head, model: ServedModel, logprobs: bool, num_probs: int
    ) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=encode_bias(model.tokenizer, self.logit_bias),
            seed=head.seed,
            num_probs=num_probs,
            logprobs=logprobs,
        )

    def _limit(self, default: int | None) -> int | None:
        """None: until the context is full. llama.cpp's precedence."""
        for limit in (self.n_predict, self.max_completion_tokens, self.max_tokens):
            if limit is not None:
                return None if limit < 0 else limit
        return default


def spread(
    request: Request, model: ServedModel, prompts: Sequence[tuple[int, ...]], num_choices: int
) -> tuple[Request, ...]:
    """`request` for every choice of every prompt, drawn apart."""
    return tuple(
        replace(
            request,
            prompt=prompt,
            sampling=replace(request.sampling, prompt_index=number, choice=choice),
            index=number * num_choices + choice,
            num_keep=_num_kept(model, request.num_keep, prompt),
        )
        for number, prompt in enumerate(prompts)
        for choice in range(num_choices)
    )


def _num_kept(model: ServedModel, n_keep: int, prompt: tuple[int, ...]) -> int:
    """As in llama.cpp, a client does not count the BOS, and it is always kept."""
    has_bos = bool(prompt) and prompt[0] == model.tokenizer.bos_id
    return n_keep + 1 if has_bos and n_keep >= 0 else n_keep
