"""What the HTTP side needs of the rest: a service to submit to, a tokenizer, a chat template.

Protocols, so that the edge can be tested without a model. Nothing here computes.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvalet.core.plan import SeqId
from kvalet.core.request import Request
from kvalet.runtime.messages import Sink, SlotState, SlotView, Snapshot


class Service(Protocol):
    """The engine thread, seen from outside. Every method is thread-safe and returns at once,
    except `close`."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def fingerprint(self) -> bytes:
        """Of the engine: a state file of another one is foreign."""
        ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def failure(self) -> str | None:
        """Why the engine thread ended, if it has."""
        ...

    def submit_all(self, generations: Sequence[Request], sinks: Sequence[Sink]) -> list[SeqId]:
        """Take the sequences of one request, all or none. Raises ContextExceeded, Overloaded or
        RequestError; after that, whatever happens reaches the sinks."""
        ...

    def cancel(self, seq_id: SeqId) -> None:
        """End a sequence in whatever state. Idempotent; nothing more need come of it."""
        ...

    def park(self, slot: int, timeout_s: float, request_id: str | None = None) -> Future[SlotView]:
        """Park what is in a slot (behaviour P14); `request_id`: whose it has to be. Fails with
        NotFound or Conflict."""
        ...

    def resume(self, slot: int, request_id: str | None = None) -> Future[SlotView]: ...

    def save(self, slot: int, path: str, request_id: str | None = None) -> Future[SlotState]:
        """Write what an idle slot's last request left, as far as it is whole pages, to a state
        file (behaviour C3). Fails with NotFound, Conflict, Overloaded, or EngineError if it cannot
        be written; then an older file of that name is still there."""
        ...

    def restore(
        self, slot: int, path: str, tokens: tuple[int, ...], timeout_s: float
    ) -> Future[SlotState]:
        """Read a state file, `tokens` are those of its header, for an idle slot; they stay parked
        until a request uses them, for `timeout_s` at most. Fails as `save` does, and then changes
        nothing."""
        ...

    def erase(self, slot: int, request_id: str | None = None) -> Future[SlotState]:
        """Forget what an idle slot's last request left. Fails with NotFound or Conflict."""
        ...

    def snapshot(self) -> Future[Snapshot]: ...

    def close(self) -> bool:
        """Fail what is live and wait for the engine thread to end; False if it takes too long."""
        ...


class Tokenizer(Protocol):
    @property
    def num_vocab(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    def encode(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        """`add_bos`: begin with BOS if the model wants one and the text does not write it."""
        ...

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at least, without tokenising it."""
        ...

    def decode(self, ids: Sequence[int], special: bool = False) -> str: ...

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """What a token adds to a text; nothing for control tokens, unless `special`."""
        ...


class ChatTemplate(Protocol):
    @property
    def source(self) -> str: ...

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,  # noqa: ANN401  # what a template takes is its own business
    ) -> str:
        """The conversation as text. Raises RequestError for what the template refuses."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model and what clients may know of it."""

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
