"""The server that is measured: one that is started for it, or any OpenAI-compatible one.

A foreign server is sent standard fields only. Two fields that not all of them take are tried once;
where they are refused, texts may end early and tokens are counted by pieces.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families
from typing_extensions import override

from kvalet.bench.chats import TIMEOUT
from kvalet.bench.process import ServerProcess, model_flags
from kvalet.errors import ConfigError, EngineError

STANDARD: Final = frozenset({"messages", "max_tokens", "temperature", "seed"})
OPTIONAL: Final[Mapping[str, object]] = {
    "ignore_eos": True,  # of llama.cpp and vLLM
    "stream_options": {"include_usage": True},  # OpenAI's, but later than the rest
}
MAX_PORT: Final = 65_535
OWN_COUNTER: Final = "n_preempt_total"


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    is_kvalet: bool = True
    model: str | None = None  # how a foreign server calls what it serves
    takes: frozenset[str] = frozenset(OPTIONAL)  # of OPTIONAL

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a chat as this server takes it."""
        if self.is_kvalet:
            return dict(body)
        known = {name: body[name] for name in body if name in STANDARD | self.takes}
        usage = OPTIONAL["stream_options"] if "stream_options" in self.takes else None
        return {"model": self.model, **known, "stream_options": usage}

    @override
    def __str__(self) -> str:
        if self.is_kvalet:
            return f"{self.url} (kvalet)"
        told = f" ({self.model})" if self.model else ""
        refused = (f", refuses {name}" for name in OPTIONAL if name not in self.takes)
        return f"{self.url}{told}{''.join(refused)}"

    def client(self) -> httpx.AsyncClient:
        # A connection kept for the next request may be closed by the server at that very moment.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT, limits=limits)

    async def counters(self, http: httpx.AsyncClient) -> Mapping[str, float]:
        """kvalet's; of a foreign server, none."""
        return await server_counters(http) if self.is_kvalet else {}


@dataclass(frozen=True, slots=True)
class Where:
    """What is measured, as the command line says it."""

    url: str | None = None  # of a server that runs already; None: one is started
    vs: tuple[str, ...] = ()  # of others, measured by turns with it
    num_rounds: int = 1
    first: int = 0  # number of the first prompt, which selects its opening
    model: str | None = None  # of the started server
    flags: tuple[str, ...] = ()  # of it, after the benchmark's own
    record: str | None = None  # file that it adds a line to for every step

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.url and (self.model or self.flags or self.record):
            given = (
                "--model is" if self.model else "--record is" if self.record else "its flags are"
            )
            raise ConfigError(f"{given} for a server that is started, and --url names one")

    @property
    def is_own(self) -> bool:
        """Whether a server is started and measured alone, so that it may be given flags, and
        several of them be started."""
        return self.url is None and not self.vs

    def begin_record(self) -> None:
        """Its file is empty from now on. Raises ConfigError."""
        if self.record:
            try:
                Path(self.record).write_text("")
            except OSError as error:
                raise ConfigError(f"--record: {self.record}: {error.strerror}") from None

    def start(
        self, *flags: str, more: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> ServerProcess:
        """The flags of the command line follow `flags` and come before `more`: the last one of a
        kind counts."""
        recording = {"LLAMA_SERVER_RECORD": self.record} if self.record else {}
        words = (*model_flags(self.model), *flags, *self.flags, *more)
        return ServerProcess(*words, env={**recording, **(env or {})})


def at(url: str) -> Target:
    """What runs there. Raises ConfigError for what is no URL, EngineError if it does not answer."""
    try:
        if (httpx.URL(url).port or 0) > MAX_PORT:
            raise httpx.InvalidURL("no such port")
        return asyncio.run(_look(url))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise ConfigError(f"expected a URL like http://127.0.0.1:8080, not {url!r}") from None
    except httpx.HTTPError as error:
        raise EngineError(f"{url} does not answer: {error}") from None


async def _look(url: str) -> Target:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        metrics = await http.get("/metrics")
        if metrics.is_success and OWN_COUNTER in metrics.text:
            return Target(url)
        plain = Target(url, is_kvalet=False, model=await _model(http), takes=frozenset())
        if refusal := await _refusal(http, plain):
            raise EngineError(f"{url} refuses a plain chat: {refusal[:500]}")
        one_more = {name: replace(plain, takes=frozenset({name})) for name in OPTIONAL}
        taken = [name for name, with_ in one_more.items() if not await _refusal(http, with_)]
        return replace(plain, takes=frozenset(taken))


async def _refusal(http: httpx.AsyncClient, target: Target) -> str:
    """What the server says to a chat of one token; empty if it answers."""
    message = {"role": "user", "content": "How are you?"}
    whole = {"messages": [message], "max_tokens": 1, "temperature": 0, "seed": 1, **OPTIONAL}
    body = {**target.body(whole), "stream": True}
    sent = {name: value for name, value in body.items() if value is not None}
    response = await http.post("/v1/chat/completions", json=sent)
    return "" if response.is_success and "data:" in response.text else response.text or "nothing"


async def _model(http: httpx.AsyncClient) -> str | None:
    """The first of those it lists, if it does."""
    response = await http.get("/v1/models")
    try:
        name: str = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        return None
    return name


async def server_counters(http: httpx.AsyncClient) -> Mapping[str, float]:
    """Samples of kvalet's /metrics without labels, by their names after `llamacpp:`."""
    text = (await http.get("/metrics")).raise_for_status().text
    return {
        sample.name.removeprefix("llamacpp:"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
