"""What a server can be told: its own settings, and the scheduler's (`core/config.py`).

Names, variables and defaults are llama.cpp's where it has them.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from kvalet.core.config import (
    UNLIMITED,
    CopyConfig,
    MemoryConfig,
    PreemptionConfig,
    ShiftConfig,
    SlotConfig,
    StepConfig,
)
from kvalet.settings import integer, number, setting, switch, text

DEFAULT_CTX_LIMIT = 8192  # without -c; a model's own context may be far larger than memory


def exactness(text: str) -> str:
    mode = {"1": "on", "0": "off"}.get(text, text)
    if mode not in ("auto", "on", "off"):
        raise ValueError("auto, on or off")
    return mode


def folder(path: str) -> str:
    if not Path(path).is_dir():
        raise ValueError("an existing folder")
    return path


def writable_folder(path: str) -> str:
    try:
        with NamedTemporaryFile(dir=folder(path)):
            return path
    except OSError:
        raise ValueError("a folder that can be written to") from None


def origins(given: str) -> tuple[str, ...]:
    """Of web pages, with commas between them."""
    found = tuple(item.strip() for item in given.split(","))
    for origin in found:
        if origin not in ("*", "localhost") and not re.fullmatch(
            r"[a-z][\w+.-]*://[^/\s]+", origin
        ):
            raise ValueError("origins such as https://chat.example with commas between, or *")
    return found


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """What is served, and how it computes."""

    model: str | None = setting(
        "-m, --model MODEL",
        "LLAMA_ARG_MODEL",
        text,
        None,
        "a GGUF file, or the name of a model that `kvalet pull` knows",
        shown="`smollm2-135m`, SmolLM2-135M-Instruct Q4_1",
    )
    alias: str | None = setting(
        "-a, --alias NAME",
        "LLAMA_ARG_ALIAS",
        text,
        None,
        "what the API calls the model",
        shown="the model's file name",
    )
    ctx_size: int | None = setting(
        "-c, --ctx-size CELLS",
        "LLAMA_ARG_CTX_SIZE",
        integer(0),
        None,
        "KV cells of the pool that all chats share, and the most one chat may hold; "
        "0: the model's training context, however large",
        shown=f"the model's training context, at most {DEFAULT_CTX_LIMIT}",
    )
    threads: int | None = setting(
        "-t, --threads N",
        "LLAMA_ARG_THREADS",
        integer(1, 512),
        None,
        "threads that compute",
        shown="the processors this process may use",
    )
    exact: str = setting(
        "--exact MODE",
        "LLAMA_EXACT_CONCURRENCY",
        exactness,
        "auto",
        "whether text may depend on who else is served: `auto` says at load what is proven of this "
        "machine, `on` refuses to start unless everything is, `off` asks nothing",
    )


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """What is held in files, in MiB."""

    folder: str | None = setting(
        "--preempt-disk DIR",
        "LLAMA_ARG_PREEMPT_DISK",
        folder,
        None,
        "folder for parked chats that do not fit in --preempt-ram",
        shown="none",
    )
    limit: int = setting(
        "--preempt-disk-limit MiB",
        "LLAMA_ARG_PREEMPT_DISK_LIMIT",
        integer(UNLIMITED),
        8192,
        "most that parked chats take of --preempt-disk; -1: no limit",
    )


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Whom is answered, and how."""

    host: str = setting(
        "--host ADDRESS", "LLAMA_ARG_HOST", text, "127.0.0.1", "address to listen on"
    )
    port: int = setting(
        "--port PORT",
        "LLAMA_ARG_PORT",
        integer(0, 65535),
        8080,
        "port to listen on; 0: any free one",
    )
    api_key: str | None = setting(
        "--api-key KEY",
        "LLAMA_API_KEY",
        text,
        None,
        "what clients must send as `Authorization: Bearer KEY`",
        shown="none",
    )
    cors_origins: tuple[str, ...] = setting(
        "--cors-origins ORIGINS",
        "LLAMA_ARG_CORS_ORIGINS",
        origins,
        (),
        "web pages that may use the server beside those of this machine, such as "
        "`https://chat.example`, with commas between; `*`: any",
        shown="localhost",
    )
    predict: int | None = setting(
        "-n, --predict N",
        "LLAMA_ARG_N_PREDICT",
        integer(UNLIMITED),
        None,
        "most tokens generated for a request that does not say how many; -1: no limit",
        shown="until the context is full",
    )
    sse_ping_interval: int = setting(
        "--sse-ping-interval SECONDS",
        "LLAMA_ARG_SSE_PING_INTERVAL",
        integer(-1),
        30,
        "a stream that stays silent for so long gets a comment, `: ping`; 0 or -1: never",
    )
    drain_seconds: float = setting(
        "--drain-seconds SECONDS",
        "LLAMA_SERVER_DRAIN_SECONDS",
        number(0),
        0.0,
        "how long chats, saves and restores may go on after SIGTERM, while new ones get 503",
    )
    park_timeout: float = setting(
        "--park-timeout SECONDS",
        "LLAMA_SERVER_PARK_TIMEOUT",
        number(0),
        300.0,
        "how long a slot stays parked on request when the request does not say",
    )
    slot_save_path: str | None = setting(
        "--slot-save-path DIR",
        "LLAMA_ARG_SLOT_SAVE_PATH",
        writable_folder,
        None,
        "folder of the files that `POST /slots/{id}?action=save` writes and `restore` reads",
        shown="none",
    )


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What is looked at and written down."""

    check: bool = setting(
        "--check",
        "LLAMA_SERVER_CHECK",
        switch,
        False,
        "verify the pool's bookkeeping after every step instead of when idle",
    )
    record: str | None = setting(
        "FILE",
        "LLAMA_SERVER_RECORD",
        text,
        None,
        "add a line about every step to a file, for `kvalet simulate --calibrate`",
        shown="none",
    )


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How a server runs."""

    load: LoadConfig = field(default_factory=LoadConfig)
    slots: SlotConfig = field(default_factory=SlotConfig)
    steps: StepConfig = field(default_factory=StepConfig)
    shift: ShiftConfig = field(default_factory=ShiftConfig)
    preemption: PreemptionConfig = field(default_factory=PreemptionConfig)
    copies: CopyConfig = field(default_factory=CopyConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
