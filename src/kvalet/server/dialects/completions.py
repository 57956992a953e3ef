"""/v1/completions: `text_completion`, streamed in objects of the same type."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import PlainValidator
from typing_extensions import override

from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.messages import TokenInfo
from kvalet.server.dialects.dialect import Defaults, Job
from kvalet.server.dialects.error import ErrorReport, error_body
from kvalet.server.dialects.generation import GenerationBody, NumProbs, spread
from kvalet.server.dialects.head import Head
from kvalet.server.dialects.logprobs import finite, token_probs
from kvalet.server.dialects.openai import Fields, OpenAIAnswer
from kvalet.server.dialects.prompt import Prompt, parse_prompts
from kvalet.server.model import ServedModel


class CompletionBody(GenerationBody):
    prompt: Annotated[tuple[Prompt, ...], PlainValidator(parse_prompts)]
    logprobs: NumProbs | None = None


class Completions:
    paths = ("/v1/completions",)
    body = CompletionBody

    def parse(self, model: ServedModel, defaults: Defaults, raw: bytes) -> Job:
        body = CompletionBody.parse(raw)
        head = body.head("cmpl", model)
        reports = body.logprobs is not None
        request = body.request(
            head, model, defaults, logprobs=reports, num_probs=body.logprobs or 0
        )
        requests = spread(request, model, body.encoded(model, body.prompt), body.num_choices)
        usage = body.stream_options.include_usage
        answer = CompletionAnswer(head, model.tokenizer, reports, usage)
        return Job(requests, answer, body.stream, body.sse_ping_interval)

    def error(self, report: ErrorReport) -> object:
        return error_body(report)


class CompletionAnswer(OpenAIAnswer):
    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self, head: Head, tokenizer: Tokenizer, logprobs: bool, include_usage: bool
    ) -> None:
        super().__init__(head, tokenizer, logprobs, include_usage)
        self._offsets: dict[int, int] = {}  # characters of each choice's text so far

    @override
    def piece(self, text: str) -> Fields:
        return {"text": text}

    @override
    def message(self, text: str) -> Fields:
        return {"text": text}

    @override
    def probs(self, index: int, tokens: Sequence[TokenInfo]) -> Fields:
        """OpenAI's parallel lists, and llama.cpp's `content` beside them."""
        return {
            "tokens": [self._name(info.token) for info in tokens],
            "token_logprobs": [finite(info.logprob) for info in tokens],
            "top_logprobs": [self._top(info) for info in tokens],
            "text_offset": self._take_offsets(index, tokens),
            "content": token_probs(self._tokenizer, tokens),
        }

    def _top(self, info: TokenInfo) -> dict[str, float | None]:
        return {self._name(token): finite(logprob) for token, logprob in info.top}

    def _name(self, token: int) -> str:
        """A token's text; bytes that are no text are spelt out, so that names stay apart."""
        raw = self._tokenizer.token_bytes(token, special=True)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _take_offsets(self, index: int, tokens: Sequence[TokenInfo]) -> list[int]:
        offset = self._offsets.get(index, 0)
        offsets: list[int] = []
        for info in tokens:
            offsets.append(offset)
            offset += _characters_begun(self._tokenizer.token_bytes(info.token))
        self._offsets[index] = offset
        return offsets


def _characters_begun(raw: bytes) -> int:
    """UTF-8 continuation bytes belong to a character that an earlier token began."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)
