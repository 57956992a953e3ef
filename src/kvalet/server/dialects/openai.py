"""What OpenAI's two dialects share: chunks, the closing chunk, usage, the whole response.

Both carry llama.cpp's `timings` beside `usage`, and the seed that was used.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvalet import __version__
from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.messages import Delta, Finished, TokenInfo
from kvalet.server.dialects.dialect import Choice
from kvalet.server.dialects.error import ErrorReport, error_body
from kvalet.server.dialects.figures import finish_reason, timings, usage
from kvalet.server.dialects.framing import SERVER_SENT_EVENTS, sse_event
from kvalet.server.dialects.head import Head

DONE = b"data: [DONE]\n\n"

Fields = Mapping[str, object]


class OpenAIAnswer(ABC):
    framing = SERVER_SENT_EVENTS
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self, head: Head, tokenizer: Tokenizer, logprobs: bool, include_usage: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._seed = head.seed
        self._num_choices = head.num_choices
        self._whole = _head_fields(head, self.kind)
        self._chunk = _head_fields(head, self.chunk_kind)
        self._results: dict[int, Finished] = {}

    @abstractmethod
    def piece(self, text: str) -> Fields:
        """The fields of a streamed choice that hold `text`."""

    @abstractmethod
    def message(self, text: str) -> Fields:
        """The fields of a whole choice that hold `text`."""

    @abstractmethod
    def probs(self, index: int, tokens: Sequence[TokenInfo]) -> Fields:
        """The `logprobs` of tokens that follow those of earlier calls."""

    def opening(self, index: int) -> bytes:
        """What goes before a choice's first chunk."""
        return b""

    def begin(self) -> bytes:
        return b""

    def delta(self, index: int, delta: Delta) -> bytes:
        choice = self._choice(index, self.piece(delta.content), delta.tokens, None)
        return self.opening(index) + sse_event({**self._chunk, "choices": [choice]})

    def close(self, index: int, finished: Finished) -> bytes:
        self._results[index] = finished
        choice = self._choice(index, self.piece(""), (), finish_reason(finished))
        body = {**self._chunk, "choices": [choice], "seed": self._seed}
        return self.opening(index) + sse_event({**body, "timings": timings([finished])})

    def end(self) -> bytes:
        if not self._include_usage:
            return DONE
        results = [self._results[index] for index in sorted(self._results)]
        return sse_event({**self._chunk, "choices": [], **self._totals(results)}) + DONE

    def error(self, report: ErrorReport) -> bytes:
        return sse_event(error_body(report))

    def whole(self, choices: Sequence[Choice]) -> object:
        results = [choice.finished for choice in choices]
        bodies = [
            self._choice(
                index, self.message(choice.content), choice.tokens, finish_reason(choice.finished)
            )
            for index, choice in enumerate(choices)
        ]
        return {**self._whole, "choices": bodies, "seed": self._seed, **self._totals(results)}

    def _totals(self, results: Sequence[Finished]) -> Fields:
        return {"usage": usage(results, self._num_choices), "timings": timings(results)}

    def _choice(
        self, index: int, content: Fields, tokens: Sequence[TokenInfo], reason: str | None
    ) -> Fields:
        logprobs = self.probs(index, tokens) if self._logprobs and tokens else None
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}


def _head_fields(head: Head, kind: str) -> Fields:
    """The head of an object of type `kind`."""
    return {
        "id": head.request_id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": f"kvalet-{__version__}",
    }
