"""A workload from a file: one JSON object a line.

    {"arrival_s": 0.5, "prompt_tokens": 200, "output_tokens": 700}

Lines of one `conversation` follow each other in the order of the file: each comes no earlier than
`pause_s` after the end of the one before, and shares its text as far as that goes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from pydantic import ConfigDict, TypeAdapter

from kvalet.errors import ConfigError
from kvalet.sim.checked import EXACTLY, AtLeastOne, Seconds, lines_of, parse
from kvalet.sim.workloads import Request


@dataclass(frozen=True, slots=True)
class TraceLine:
    __pydantic_config__: ClassVar[ConfigDict] = EXACTLY

    arrival_s: Seconds
    prompt_tokens: AtLeastOne  # all of the prompt, what came before included
    output_tokens: AtLeastOne
    max_tokens: AtLeastOne | None = None  # that the client allowed; else as many as came
    pause_s: Seconds = 0.0
    priority: int = 0
    conversation: str | int | None = None  # None: its own


_LINE: Final = TypeAdapter(TraceLine)


def load(path: Path, n_ctx: int) -> tuple[Request, ...]:
    """Raises ConfigError naming line and field of what cannot be served in `n_ctx` cells."""
    requests = requests_of(lines_of(path), n_ctx, str(path))
    if not requests:
        raise ConfigError(f"{path}: there is no request in it")
    return requests


def requests_of(lines: Iterable[str], n_ctx: int, source: str) -> tuple[Request, ...]:
    """Raises ConfigError, naming line and field."""
    conversations: dict[object, int] = {}
    requests: list[Request] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = parse(_LINE, text)
            key = ("line", number) if line.conversation is None else line.conversation
            requests.append(_request(line, conversations.setdefault(key, len(conversations))))
            _require_room(line, n_ctx)
        except ValueError as error:
            raise ConfigError(f"{source}, line {number}: {error}") from None
    return tuple(requests)


def _require_room(line: TraceLine, n_ctx: int) -> None:
    total = line.prompt_tokens + line.output_tokens
    if total > n_ctx:
        raise ValueError(
            f"prompt_tokens + output_tokens: {total} do not fit into {n_ctx} cells (--ctx-size)"
        )
    if line.max_tokens is not None and line.max_tokens < line.output_tokens:
        raise ValueError(f"max_tokens: {line.max_tokens} is less than output_tokens")


def _request(line: TraceLine, conversation: int) -> Request:
    return Request(
        conversation=conversation,
        arrival_s=line.arrival_s,
        num_prompt=line.prompt_tokens,
        num_output=line.output_tokens,
        max_tokens=line.max_tokens or line.output_tokens,
        pause_s=line.pause_s,
        priority=line.priority,
    )
