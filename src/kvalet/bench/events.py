"""What is read of a chat completion's events, from any server. Anything else in them is ignored;
what has another shape is a ValueError."""

from typing import Any

from pydantic import BaseModel


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
