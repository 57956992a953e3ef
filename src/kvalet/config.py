"""Every setting of `kvalet serve`, once: its spellings, its limits and its default.

A field of `ServeConfig` is a setting. The command line parser and docs/reference/flags.md are made
from the fields. A flag wins over its environment variable, which wins over the default; a value
that cannot be honoured is a ConfigError that names where it came from.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from kvalet.errors import ConfigError

T = TypeVar("T")

DEFAULT_CTX_LIMIT = 8192  # without -c; a model's own context may be far larger than memory


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field of `ServeConfig` is to a user."""

    flags: tuple[str, ...]  # empty: settable by its variable only
    env: str | None
    parse: Callable[[str], object]  # raises ValueError with what it expected
    metavar: str  # empty: a switch
    default: str  # as shown to a reader
    about: str

    @property
    def is_switch(self) -> bool:
        return not self.metavar


def _setting(
    default: T,
    *flags: str,
    parse: Callable[[str], T],
    about: str,
    env: str | None = None,
    metavar: str = "",
    shown: str | None = None,
) -> T:
    text = str(default) if shown is None else shown
    setting = Setting(flags, env, parse, metavar, text, about)
    value: T = field(default=default, metadata={"setting": setting})
    return value


def _integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"an integer {limits}")
        return value

    return parse


def _text(text: str) -> str:
    if not text:
        raise ValueError("a text that is not empty")
    return text


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.lower() not in words:
        raise ValueError("1, true, on, 0, false or off")
    return words[text.lower()]


def _exactness(text: str) -> str:
    mode = {"1": "on", "0": "off"}.get(text, text)
    if mode not in ("auto", "on", "off"):
        raise ValueError("auto, on or off")
    return mode


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How a server runs. Names, variables and defaults are llama.cpp's where it has them."""

    model: str | None = _setting(
        None,
        "-m",
        "--model",
        env="LLAMA_ARG_MODEL",
        parse=_text,
        metavar="MODEL",
        shown="`smollm2-135m`, SmolLM2-135M-Instruct Q4_1",
        about="a GGUF file, or the name of a model that `kvalet pull` knows",
    )
    alias: str | None = _setting(
        None,
        "-a",
        "--alias",
        env="LLAMA_ARG_ALIAS",
        parse=_text,
        metavar="NAME",
        shown="the model's file name",
        about="what the API calls the model",
    )
    ctx_size: int | None = _setting(
        None,
        "-c",
        "--ctx-size",
        env="LLAMA_ARG_CTX_SIZE",
        parse=_integer(0),
        metavar="CELLS",
        shown=f"the model's training context, at most {DEFAULT_CTX_LIMIT}",
        about="KV cells of the pool that all chats share, and the most one chat may hold; "
        "0: the model's training context, however large",
    )
    parallel: int = _setting(
        4,
        "-np",
        "--parallel",
        env="LLAMA_ARG_N_PARALLEL",
        parse=_integer(1, 256),
        metavar="SLOTS",
        about="requests served at once; more wait in a queue",
    )
    max_queue: int = _setting(
        128,
        "--max-queue",
        env="LLAMA_ARG_MAX_QUEUE",
        parse=_integer(0),
        metavar="N",
        about="requests that may wait for a slot; beyond it the answer is 503",
    )
    batch_size: int = _setting(
        512,
        "-b",
        "--batch-size",
        env="LLAMA_ARG_BATCH",
        parse=_integer(1, 4096),
        metavar="TOKENS",
        about="most tokens computed in one step",
    )
    threads: int | None = _setting(
        None,
        "-t",
        "--threads",
        env="LLAMA_ARG_THREADS",
        parse=_integer(1, 512),
        metavar="N",
        shown="the processors this process may use",
        about="threads that compute",
    )
    predict: int | None = _setting(
        None,
        "-n",
        "--predict",
        env="LLAMA_ARG_N_PREDICT",
        parse=_integer(0),
        metavar="N",
        shown="until the context is full",
        about="most tokens generated for a request that does not say how many",
    )
    host: str = _setting(
        "127.0.0.1",
        "--host",
        env="LLAMA_ARG_HOST",
        parse=_text,
        metavar="ADDRESS",
        about="address to listen on",
    )
    port: int = _setting(
        8080,
        "--port",
        env="LLAMA_ARG_PORT",
        parse=_integer(0, 65535),
        metavar="PORT",
        about="port to listen on; 0: any free one",
    )
    api_key: str | None = _setting(
        None,
        "--api-key",
        env="LLAMA_API_KEY",
        parse=_text,
        metavar="KEY",
        shown="none",
        about="what clients must send as `Authorization: Bearer KEY`",
    )
    exact: str = _setting(
        "auto",
        "--exact",
        env="LLAMA_EXACT_CONCURRENCY",
        parse=_exactness,
        metavar="MODE",
        about="whether text may depend on who else is served: `auto` says at load what is proven "
        "of this machine, `on` refuses to start unless everything is, `off` asks nothing",
    )
    check: bool = _setting(
        False,
        "--check",
        parse=_switch,
        shown="off",
        about="verify the pool's bookkeeping after every step instead of when idle",
    )
    preempt_every: int = _setting(
        0,
        env="LLAMA_SERVER_PREEMPT_EVERY",
        parse=_integer(0),
        metavar="N",
        shown="0, off",
        about="test knob: park every chat after each N tokens it generates, so that every page it "
        "holds alone comes back from the host",
    )


def settings() -> Iterator[tuple[str, Setting]]:
    """Field names and what they are to a user, in the order of the dataclass."""
    for item in fields(ServeConfig):
        yield item.name, item.metadata["setting"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags. Values stay text: `load` reads flags and variables alike."""
    for name, setting in settings():
        if not setting.flags:
            continue
        variable = f"; env {setting.env}" if setting.env else ""
        text = f"{setting.about} (default: {setting.default}{variable})"
        if setting.is_switch:
            parser.add_argument(
                *setting.flags, dest=name, action="store_const", const="on", help=text
            )
        else:
            parser.add_argument(*setting.flags, dest=name, metavar=setting.metavar, help=text)


def load(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ServeConfig:
    """Settings from the text of flags (None: not given) and of environment variables.

    Raises ConfigError, naming the flag or variable whose value it cannot honour.
    """
    values: dict[str, object] = {}
    for name, setting in settings():
        given, source = flags.get(name), "/".join(setting.flags)
        if given is None and setting.env:
            given, source = environ.get(setting.env), setting.env
        if given is not None:
            values[name] = _parsed(setting, source, given)
    return ServeConfig(**values)  # type: ignore[arg-type]  # each parsed by its own field's parser


def _parsed(setting: Setting, source: str, text: str) -> object:
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{source}: expected {error}, not {text!r}") from None


def knobs(config: ServeConfig) -> list[str]:
    """Test knobs that are set, to be announced at load (SPEC P8)."""
    return [
        f"{setting.env}={getattr(config, name)}"
        for name, setting in settings()
        if not setting.flags and getattr(config, name)
    ]
