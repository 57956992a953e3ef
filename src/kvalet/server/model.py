"""A loaded model as the HTTP side has it: what runs it, its vocabulary, what clients are told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvalet.model.chat_template import ChatTemplate
from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.service import Service


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    path: str
    service: Service
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the file has none, so no chat endpoint
    n_ctx_train: int = 0
    n_embd: int = 0
    n_params: int = 0
    size_bytes: int = 0
    props: Mapping[str, object] = field(default_factory=dict[str, object])  # more for /props
