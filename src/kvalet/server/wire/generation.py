"""The fields every generating endpoint shares: llama.cpp's sampling options, limits and stops.

Defaults are `SamplingParams`' own. A model name is not checked: one model is served, whatever a
client calls it.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, field_validator

from kvalet.core.request import SamplingParams
from kvalet.server.wire.prompt import Bias, parse_logit_bias, parse_stop
from kvalet.server.wire.strict import Strict

DEFAULTS = SamplingParams()
MAX_PROBS = 100
MAX_CHOICES = 64
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


class StreamOptions(Strict):
    include_usage: bool = False


class GenerationFields(Strict):
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

    def max_new_tokens(self, default: int | None) -> int | None:
        """The limit asked for; None: until the context is full. llama.cpp's precedence."""
        for limit in (self.n_predict, self.max_completion_tokens, self.max_tokens):
            if limit is not None:
                return None if limit < 0 else limit
        return default
