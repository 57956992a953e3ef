"""Request bodies: every field is served, ignored because it changes nothing, or refused by name.

A null means that the field was not given, as in llama.cpp's server. What is `ignored` cannot change
an answer of ours; what is `refused` is taken with a value that asks for nothing, and answered with
a 400 that names it with any other. So is any further name.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import ClassVar, Self

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from kvalet.errors import RequestError

# What OpenAI's and llama.cpp's clients send without meaning to change the text.
IGNORED = frozenset(
    {
        # OpenAI: bookkeeping of its own platform
        "user", "metadata", "service_tier", "safety_identifier", "parallel_tool_calls",
        "prompt_cache_key", "prompt_cache_retention", "include_obfuscation",
        # llama.cpp: parameters of samplers whose switch is in REFUSED, or of speed alone
        "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
        "mirostat_tau", "mirostat_eta", "xtc_threshold", "dynatemp_exponent", "adaptive_decay",
        "backend_sampling", "n_cache_reuse", "speculative.n_max", "speculative.n_min",
        "speculative.p_min", "speculative.type",
    }
)  # fmt: skip

# llama.cpp's order of samplers, and those of it that are never switched on here.
_CHAIN = [
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"
]  # fmt: skip
_ABSENT_SAMPLERS = frozenset({"dry", "top_n_sigma", "xtc"})

_NO_LIST: tuple[object, ...] = ([],)
_FALSE: tuple[object, ...] = (False,)
_ZERO: tuple[object, ...] = (0,)

# Field: the values that ask for nothing.
REFUSED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        # OpenAI
        "suffix": ("",),
        "echo": _FALSE,
        "store": _FALSE,
        "tools": _NO_LIST,
        "tool_choice": ("none", "auto"),
        "tool_calls": _NO_LIST,
        "tool_call_id": (),
        "functions": _NO_LIST,
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "refusal": ("",),
        "annotations": _NO_LIST,
        # llama.cpp
        "n_indent": _ZERO,
        "min_keep": _ZERO,
        "t_max_predict_ms": (0, -1),
        "dynatemp_range": _ZERO,
        "dry_multiplier": _ZERO,
        "xtc_probability": _ZERO,
        "mirostat": _ZERO,
        "top_n_sigma": (-1, 0),
        "adaptive_target": (-1,),
        "samplers": (_CHAIN, [name for name in _CHAIN if name not in _ABSENT_SAMPLERS]),
        "grammar": ("",),
        "grammar_lazy": _FALSE,
        "grammar_triggers": _NO_LIST,
        "preserved_tokens": _NO_LIST,
        "json_schema": (),
        "lora": _NO_LIST,
        "image_data": _NO_LIST,
        "response_fields": _NO_LIST,
        "post_sampling_probs": _FALSE,
        "return_progress": _FALSE,
        "timings_per_token": _FALSE,
        "verbose": _FALSE,
        "reasoning_format": ("none", "auto"),
        "reasoning_control": _FALSE,
        "reasoning_budget_tokens": (-1,),
        "continue_final_message": _FALSE,
    }
)


class Body(BaseModel):
    """A JSON object that a client sends: its fields are those that work. What else it may hold is
    what clients of OpenAI and of llama.cpp send, to whichever of their endpoints."""

    ignored: ClassVar[frozenset[str]] = IGNORED
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = REFUSED

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if cls._asks(name, value)}

    @classmethod
    def _asks(cls, name: str, value: object) -> bool:
        if value is None or name in cls.ignored:
            return False
        if name in cls.model_fields:
            return True
        return value not in cls.refused.get(name, ())

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Raises RequestError, naming the first field that is wrong."""
        try:
            given = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise RequestError(f"the body is not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise RequestError("the body must be a JSON object")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _first_fault(error, cls.refused) from None


def _first_fault(error: ValidationError, refused: Collection[str]) -> RequestError:
    fault = error.errors(include_url=False, include_input=False)[0]
    field = _path(fault["loc"])
    match fault["type"]:
        case "extra_forbidden" if fault["loc"][-1] in refused:
            message = f"'{field}' is not supported with this value"
        case "extra_forbidden":
            message = f"'{field}' is not a known field"
        case "missing":
            message = f"'{field}' is required"
        case "value_error":
            message = f"'{field}': {fault['ctx']['error']}"
        case _:
            reason = fault["msg"]
            message = f"'{field}': {reason[0].lower()}{reason[1:]}"
    return RequestError(message, field)


def _path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "role")` -> `messages[0].role`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
