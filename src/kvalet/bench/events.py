"""What is read of a chat completion's events, from any server. Anything else in them is ignored;
what has another shape is a ValueError."""

from typing import Any

from pydantic import BaseModel, ValidationError


class Delta(BaseModel):
    content: str | None = None


class Choice(BaseModel):
    delta: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(BaseModel):
    cached_tokens: int | None = None


class Usage(BaseModel):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Timings(BaseModel):
    """kvalet's and llama.cpp's."""

    n_preempt: int | None = None
    cache_n: int | None = None  # prompt tokens found
    prompt_n: int | None = None  # prompt tokens computed


class Event(BaseModel):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: Any = None


def told(error: ValidationError) -> str:
    """Its first complaint, with the field."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" if field else first["msg"]
