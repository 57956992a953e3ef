"""What came back for one request of a soak, and whether that was in order.

A stream is checked line by line: notices alternate, nothing is said by who is away. At the end,
every choice must have as many tokens as were asked for, or as the context holds.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from bench.soak.requests import Dialect, Ending, Request


class Fate(Enum):
    DONE = "done"
    LEFT = "left"  # by its client
    REFUSED = "refused"  # the queue was full
    LOST = "lost"


class Disorder(Exception):  # what was wrong with an answer
    pass


class Part(NamedTuple):
    """Of one choice: some text; and what it came to, if that was the last."""

    choice: int
    text: str
    num_tokens: int | None = None
    num_prompt: int = 0


@dataclass(slots=True)
class Outcome:
    request: Request
    fate: Fate = Fate.LOST
    why: str = ""
    texts: dict[int, str] = field(default_factory=dict[int, str])
    num_tokens: dict[int, int] = field(default_factory=dict[int, int])
    num_prompt: int = 0
    num_notices: int = 0
    _away: set[int] = field(default_factory=set[int])

    def lose(self, why: str) -> None:
        self.fate, self.why = Fate.LOST, why

    def take_line(self, line: str) -> None:
        """A line of an event stream. Raises Disorder."""
        if line.startswith(": "):
            self._take_comment(line.removeprefix(": "))
        elif line.startswith("data: ") and line != "data: [DONE]":
            self.take_body(json.loads(line.removeprefix("data: ")), is_whole=False)

    def take_body(self, body: Any, *, is_whole: bool) -> None:  # noqa: ANN401  # any JSON
        """An event's, or the whole answer. Raises Disorder."""
        if "error" in body:
            raise Disorder(f"error event: {body['error']}")
        for part in _parts(self.request, body, is_whole):
            self._take(part)

    def num_expected(self, n_ctx: int, *, endless: bool) -> int:
        """Tokens of each choice, unless a stop string ends it."""
        limit, room = self.request.limit, n_ctx - self.num_prompt
        return limit if endless or 0 <= limit <= room else room

    def check_complete(self, n_ctx: int, *, endless: bool) -> None:
        """Raises Disorder."""
        if set(self.num_tokens) != set(range(self.request.num_choices)):
            raise Disorder(f"only choices {set(self.num_tokens)} have ended")
        expected = self.num_expected(n_ctx, endless=endless)
        least = 1 if "stop" in self.request.body else expected
        if not all(least <= count <= expected for count in self.num_tokens.values()):
            raise Disorder(f"{self.num_tokens} tokens by choice, not {expected}")
        if self._away:
            raise Disorder(f"choices {self._away} were never resumed")

    def request_alone(self, n_ctx: int, *, endless: bool) -> Request:
        """The same, to be read to its end, and to end where it did in a larger context."""
        limit = self.num_expected(n_ctx, endless=endless)
        body = {**self.request.body, "n_predict": limit, "cache_prompt": False}
        body.pop("id_slot", None)
        return replace(self.request, body=body, ending=Ending.READS_ALL)

    def _take(self, part: Part) -> None:
        if part.choice in self._away or part.choice in self.num_tokens:
            raise Disorder(f"text of choice {part.choice} while it is away or after its end")
        self.texts[part.choice] = self.texts.get(part.choice, "") + part.text
        if part.num_tokens is not None:
            self.num_tokens[part.choice] = part.num_tokens
            self.num_prompt = part.num_prompt

    def _take_comment(self, comment: str) -> None:
        word, _, number = comment.partition(" ")
        index = int(number or 0)
        if word == "ping":
            return
        if (index in self._away) != (word != "preempted") or index in self.num_tokens:
            raise Disorder(f"notice out of order: {comment}")
        self.num_notices += 1
        if word == "preempted":
            self._away.add(index)
        elif word == "resumed":
            self._away.remove(index)
        elif word != "preempt-keepalive":
            raise Disorder(f"unknown notice: {comment}")


def _parts(request: Request, body: Any, is_whole: bool) -> Iterator[Part]:  # noqa: ANN401
    if request.dialect is Dialect.NATIVE:
        for answer in body if isinstance(body, list) else [body]:
            end = (answer["tokens_predicted"], answer["tokens_evaluated"])
            yield Part(answer["index"], answer["content"], *(end if answer["stop"] else ()))
        return
    timings = body.get("timings", {})
    num_prompt = timings.get("prompt_n", 0) + timings.get("cache_n", 0)
    for choice in body["choices"]:
        text = _text(choice)
        if is_whole:
            usage, count = body["usage"], len(body["choices"])
            each = usage["completion_tokens"] // count  # all are equally long without a stop
            yield Part(choice["index"], text, each, usage["prompt_tokens"])
        elif choice["finish_reason"]:
            yield Part(choice["index"], text, timings["predicted_n"], num_prompt)
        else:
            yield Part(choice["index"], text)


def _text(choice: Any) -> str:  # noqa: ANN401
    message = choice.get("message") or choice.get("delta")
    return str((choice["text"] if message is None else message.get("content")) or "")
