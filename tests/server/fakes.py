"""A model without a model: byte tokens, a one-line template, a service that plays a script.

The service's thread gives every live sequence one batch of events a step, as the engine thread
does. What a sequence says is a generator the test chooses.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from typing_extensions import override

from kvalet.core.plan import FinishReason, SeqId
from kvalet.core.request import Request
from kvalet.errors import ContextExceeded, EngineFatal, KvaletError, Overloaded, RequestError
from kvalet.model.chat_template import ChatTemplate
from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.messages import (
    Event,
    Failed,
    Finished,
    Sink,
    SlotState,
    SlotView,
    Snapshot,
    Timings,
    TokenInfo,
)
from kvalet.runtime.service import Service
from kvalet.server.model import ServedModel
from tests.builders import said
from tests.server.fake_slots import make_snapshot, state_of, view_of

BOS, EOS = 256, 257
SPECIAL = {BOS: b"<s>", EOS: b"</s>"}

Script = Callable[[Request], Iterator[Sequence[Event]]]


class ByteTokenizer(Tokenizer):
    """A token is a byte; two control tokens besides."""

    def __init__(self, add_bos: bool = True) -> None:
        self.num_vocab = 258
        self.bos_id = BOS
        self.eos_id = EOS
        self.add_bos = add_bos

    @override
    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        ids: list[int] = []
        rest = text.encode()
        while rest:
            special = next((i for i, name in SPECIAL.items() if rest.startswith(name)), None)
            if special is not None and parse_special:
                ids.append(special)
                rest = rest[len(SPECIAL[special]) :]
            else:
                ids.append(rest[0])
                rest = rest[1:]
        return [BOS, *ids] if add_bos and self.add_bos and ids[:1] != [BOS] else ids

    @override
    def least_tokens(self, text: str) -> int:
        return len(text.encode()) // max(map(len, SPECIAL.values()))

    @override
    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        return b"".join(self.token_bytes(i, special) for i in ids).decode("utf-8", "replace")

    @override
    def token_bytes(self, token: int, special: bool = False) -> bytes:
        if token in SPECIAL:
            return SPECIAL[token] if special else b""
        return bytes([token])


class LineTemplate(ChatTemplate):
    """`<s>[user]hello[assistant]`; refuses a conversation that ends with a system message."""

    def __init__(self) -> None:
        self.source = "{{ a line per message }}"

    @override
    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        if messages[-1]["role"] == "system":
            raise RequestError("the template refuses it", "messages")
        lines = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        options = "".join(f"{{{name}={value}}}" for name, value in kwargs.items())
        return "<s>" + lines + options + ("[assistant]" if add_generation_prompt else "")


def finished(
    request: Request,
    num_tokens: int,
    reason: FinishReason = FinishReason.LENGTH,
    word: str = "",
) -> Finished:
    return Finished(
        reason=reason,
        stopping_word=word,
        num_prompt_tokens=len(request.prompt),
        num_tokens=num_tokens,
        truncated=reason is FinishReason.CONTEXT,
        slot=0,
        timings=Timings(len(request.prompt) - 1, 1, 20.0, num_tokens, 50.0, 2, 0, 7.0),
    )


def info_of(token: int, request: Request) -> TokenInfo:
    top = tuple((token + i, -0.5 - i) for i in range(request.sampling.num_probs))
    return TokenInfo(token, -0.5, top)


def says(text: str, reason: FinishReason = FinishReason.EOS, word: str = "") -> Script:
    """One character a step, as many as are asked for."""

    def script(request: Request) -> Iterator[Sequence[Event]]:
        limit = request.max_new_tokens
        whole = text if limit is None else text[:limit]
        reports = request.sampling.logprobs or request.sampling.num_probs > 0
        for char in whole:
            tokens = tuple(info_of(byte, request) for byte in char.encode())
            yield [said(char, *(tokens if reports else ()))]
        ended = FinishReason.LENGTH if len(whole) == limit else reason
        yield [finished(request, len(whole), ended, word)]

    return script


def endless(request: Request) -> Iterator[Sequence[Event]]:
    for _ in itertools.count():
        yield [said("on ")]


def silent(request: Request) -> Iterator[Sequence[Event]]:
    for _ in itertools.count():
        yield []


def plays(*batches: Sequence[Event]) -> Script:
    return lambda request: iter(batches)


def by_choice(*scripts: Script) -> Script:
    """Another script for each sequence of a request."""
    return lambda request: scripts[request.index](request)


def by_prompt(**scripts: Script) -> Script:
    """Another script for each prompt."""
    return lambda request: scripts[bytes(request.prompt[1:]).decode()](request)


@dataclass
class FakeService(Service):
    """Plays its script. Nothing of the real service but its type."""

    n_ctx: int = 128
    num_slots: int = 2
    max_live: int = 100
    step_s: float = 0.0005
    script: Script = field(default_factory=lambda: says("hello"))
    submitted: list[Request] = field(default_factory=list[Request])
    cancelled: list[SeqId] = field(default_factory=list[SeqId])
    asked: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    alive: bool = True
    failure: str | None = None
    close_result: bool = True
    fingerprint: bytes = bytes(range(32))
    page_bytes: int = 64
    copies_hang: bool = False  # saves, restores and erasures are never answered
    copy_error: Exception | None = None  # what they fail with

    def __post_init__(self) -> None:
        self._playing: dict[SeqId, tuple[Iterator[Sequence[Event]], Sink]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @override
    def submit_all(self, requests: Sequence[Request], sinks: Sequence[Sink]) -> list[SeqId]:
        for request in requests:
            if request.id_slot is not None and request.id_slot >= self.num_slots:
                raise RequestError(f"there is no slot {request.id_slot} (id_slot)", "id_slot")
            if len(request.prompt) >= self.n_ctx:
                raise ContextExceeded(len(request.prompt), self.n_ctx)
        with self._lock:
            if len(self._playing) >= self.max_live:
                raise Overloaded("the queue is full", retry_after_s=3)
            ids = [SeqId(len(self.submitted) + i) for i in range(len(requests))]
            self.submitted += requests
            scripts = [self.script(request) for request in requests]
            self._playing.update(zip(ids, zip(scripts, sinks, strict=True), strict=True))
        return ids

    @override
    def cancel(self, seq_id: SeqId) -> None:
        with self._lock:
            if self._playing.pop(seq_id, None):
                self.cancelled.append(seq_id)

    @override
    def park(self, slot: int, timeout_s: float, request_id: str | None = None) -> Future[SlotView]:
        self.asked.append(("park", slot, timeout_s, request_id))
        return view_of(slot, request_id)

    @override
    def resume(self, slot: int, request_id: str | None = None) -> Future[SlotView]:
        self.asked.append(("resume", slot, request_id))
        return view_of(slot, request_id)

    @override
    def save(self, slot: int, path: str, request_id: str | None = None) -> Future[SlotState]:
        self.asked.append(("save", slot, path, request_id))
        return self._state(slot, request_id, SlotState(slot, 96, 4321, 0.25))

    @override
    def restore(
        self, slot: int, path: str, tokens: tuple[int, ...], timeout_s: float
    ) -> Future[SlotState]:
        self.asked.append(("restore", slot, path, tokens, timeout_s))
        return self._state(slot, None, SlotState(slot, len(tokens), 1234, 0.5))

    @override
    def erase(self, slot: int, request_id: str | None = None) -> Future[SlotState]:
        self.asked.append(("erase", slot, request_id))
        return self._state(slot, request_id, SlotState(slot, 64))

    def _state(self, slot: int, request_id: str | None, state: SlotState) -> Future[SlotState]:
        return Future() if self.copies_hang else state_of(slot, request_id, state, self.copy_error)

    @override
    def snapshot(self) -> Future[Snapshot]:
        answer: Future[Snapshot] = Future()
        answer.set_result(make_snapshot(len(self._playing)))
        return answer

    def die(self, reason: str) -> None:
        self.alive, self.failure = False, reason
        with self._lock:
            live, self._playing = self._playing, {}
        for _, sink in live.values():
            sink([Failed(EngineFatal(reason))])

    @override
    def close(self, reason: str = "", timeout_s: float = 5.0) -> bool:
        self._over.set()
        self._thread.join(timeout_s)
        return self.close_result

    @property
    def num_live(self) -> int:
        return len(self._playing)

    @override
    def _run(self) -> None:
        while not self._over.wait(self.step_s):
            with self._lock:
                live = list(self._playing.items())
            for seq_id, (events, sink) in live:
                self._step(seq_id, events, sink)

    def _step(self, seq_id: SeqId, events: Iterator[Sequence[Event]], sink: Sink) -> None:
        try:
            batch = next(events, None)
        except KvaletError as error:
            batch = [Failed(error)]
        if batch is None or any(isinstance(event, Finished | Failed) for event in batch):
            with self._lock:
                self._playing.pop(seq_id, None)
        if batch:
            sink(batch)


def make_model(
    service: Service, template: bool, add_bos: bool, props: Mapping[str, object]
) -> ServedModel:
    return ServedModel(
        name="tiny",
        path="/models/tiny.gguf",
        service=service,
        tokenizer=ByteTokenizer(add_bos),
        template=LineTemplate() if template else None,
        n_ctx_train=256,
        props=props,
    )
