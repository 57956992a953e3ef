"""What a server can be told, in all: settings of its own, of the scheduler (`core/config.py`), and
of the HTTP side (`server/settings.py`).

Names, variables and defaults are llama.cpp's where it has them.
"""

from dataclasses import dataclass, field
from pathlib import Path

from kvalet.core.config import (
    UNLIMITED,
    CopyConfig,
    MemoryConfig,
    PreemptionConfig,
    ShiftConfig,
    SlotConfig,
    StepConfig,
)
from kvalet.server.settings import ServerSettings, folder
from kvalet.settings import integer, setting, switch, text

DEFAULT_CTX_LIMIT = 8192  # without -c; a model's own context may be far larger than memory


def exactness(text: str) -> str:
    mode = {"1": "on", "0": "off"}.get(text, text)
    if mode not in ("auto", "on", "off"):
        raise ValueError("auto, on or off")
    return mode


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
        "whether text may depend on what else is served: `auto` says at load what is proven of "
        "this machine, `on` refuses to start unless everything is, `off` asks nothing",
    )


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """What is held in files, in MiB."""

    folder: Path | None = setting(
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
    http: ServerSettings = field(default_factory=ServerSettings)
    watch: WatchConfig = field(default_factory=WatchConfig)
