"""/v1/chat/completions: `chat.completion` and its chunks."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import override

from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.messages import TokenInfo
from kvalet.server.dialects.conversation import TemplateBody
from kvalet.server.dialects.dialect import Defaults, Job
from kvalet.server.dialects.encoding import encode_chat
from kvalet.server.dialects.error import ErrorReport, error_body
from kvalet.server.dialects.framing import sse_event
from kvalet.server.dialects.generation import GenerationBody, spread
from kvalet.server.dialects.head import Head
from kvalet.server.dialects.logprobs import token_probs
from kvalet.server.dialects.openai import Fields, OpenAIAnswer
from kvalet.server.model import ServedModel


class ChatBody(GenerationBody, TemplateBody):
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, number: int, info: ValidationInfo) -> int:
        if number and not info.data.get("logprobs"):
            raise ValueError("needs 'logprobs' to be true")
        return number


class Chat:
    paths = ("/v1/chat/completions", "/chat/completions")
    body = ChatBody

    def parse(self, model: ServedModel, defaults: Defaults, raw: bytes) -> Job:
        body = ChatBody.parse(raw)
        head = body.head("chatcmpl", model)
        request = body.request(
            head, model, defaults, logprobs=body.logprobs, num_probs=body.top_logprobs
        )
        requests = spread(request, model, [encode_chat(model, body)], body.num_choices)
        usage = body.stream_options.include_usage
        answer = ChatAnswer(head, model.tokenizer, body.logprobs, usage)
        return Job(requests, answer, body.stream, body.sse_ping_interval)

    def error(self, report: ErrorReport) -> object:
        return error_body(report)


class ChatAnswer(OpenAIAnswer):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self, head: Head, tokenizer: Tokenizer, logprobs: bool, include_usage: bool
    ) -> None:
        super().__init__(head, tokenizer, logprobs, include_usage)
        self._opened: set[int] = set()

    @override
    def opening(self, index: int) -> bytes:
        """The chunk with the role."""
        if index in self._opened:
            return b""
        self._opened.add(index)
        speaker = {"delta": {"role": "assistant", "content": ""}}
        return sse_event({**self._chunk, "choices": [self._choice(index, speaker, (), None)]})

    @override
    def piece(self, text: str) -> Fields:
        return {"delta": {"content": text} if text else {}}

    @override
    def message(self, text: str) -> Fields:
        return {"message": {"role": "assistant", "content": text}}

    @override
    def probs(self, index: int, tokens: Sequence[TokenInfo]) -> Fields:
        return {"content": token_probs(self._tokenizer, tokens), "refusal": None}
