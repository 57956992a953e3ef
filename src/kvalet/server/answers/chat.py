"""/v1/chat/completions: `chat.completion` and its chunks."""

from collections.abc import Sequence

from typing_extensions import override

from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.messages import TokenInfo
from kvalet.server.answers.answer import Head, sse_data, token_probs
from kvalet.server.answers.openai import Fields, OpenAIAnswer


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
        """The chunk that says who speaks."""
        if index in self._opened:
            return b""
        self._opened.add(index)
        speaker = {"delta": {"role": "assistant", "content": ""}}
        return sse_data({**self._chunk, "choices": [self._choice(index, speaker, (), None)]})

    @override
    def piece(self, text: str) -> Fields:
        return {"delta": {"content": text} if text else {}}

    @override
    def message(self, text: str) -> Fields:
        return {"message": {"role": "assistant", "content": text}}

    @override
    def probs(self, index: int, tokens: Sequence[TokenInfo]) -> Fields:
        return {"content": token_probs(self._tokenizer, tokens), "refusal": None}
