"""Every setting of `kvalet serve`, once: its spellings, its variable, its limits and its default.

Names, variables and defaults are llama.cpp's where it has them.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES
from kvalet.settings import choice, integer, number, setting, switch, text

DEFAULT_CTX_LIMIT = 8192  # without -c; a model's own context may be far larger than memory
UNLIMITED = -1


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
class ServeConfig:
    """How a server runs."""

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
    parallel: int = setting(
        "-np, --parallel SLOTS",
        "LLAMA_ARG_N_PARALLEL",
        integer(1, 256),
        4,
        "requests served at once; more wait in a queue",
    )
    max_queue: int = setting(
        "--max-queue N",
        "LLAMA_ARG_MAX_QUEUE",
        integer(0),
        128,
        "requests that may wait for a slot; beyond it the answer is 503",
    )
    batch_size: int = setting(
        "-b, --batch-size TOKENS",
        "LLAMA_ARG_BATCH",
        integer(1, 4096),
        512,
        "most tokens computed in one step",
    )
    prefill_stretch: float = setting(
        "--prefill-stretch FACTOR",
        "LLAMA_SERVER_PREFILL_STRETCH",
        number(1),
        2.0,
        "how much longer a step of chats that generate may take when a prompt or a replay is "
        "computed beside them",
    )
    threads: int | None = setting(
        "-t, --threads N",
        "LLAMA_ARG_THREADS",
        integer(1, 512),
        None,
        "threads that compute",
        shown="the processors this process may use",
    )
    predict: int | None = setting(
        "-n, --predict N",
        "LLAMA_ARG_N_PREDICT",
        integer(UNLIMITED),
        None,
        "most tokens generated for a request that does not say how many; -1: no limit",
        shown="until the context is full",
    )
    context_shift: bool = setting(
        "--context-shift, --no-context-shift",
        "LLAMA_ARG_CONTEXT_SHIFT",
        switch,
        False,
        "a chat that reaches the context size forgets the middle of what it knows instead of "
        "ending; needs at least 64 cells",
    )

    preempt: bool = setting(
        "--preempt, --no-preempt",
        "LLAMA_ARG_PREEMPT",
        switch,
        True,
        "park a chat when the pool is full; off: a chat that gets no room ends with an error",
    )
    preempt_async: bool = setting(
        "--preempt-async, --no-preempt-async",
        "LLAMA_ARG_PREEMPT_ASYNC",
        switch,
        True,
        "copies to and from the host run beside steps; off: a step waits for its copies",
    )
    preempt_mirror: bool = setting(
        "--preempt-mirror MODE",
        "LLAMA_SERVER_PREEMPT_MIRROR",
        switch,
        True,
        "`on` or `off`: full pages are copied to the host ahead of a park, which then has less to "
        "copy; never with --no-preempt-async",
    )
    preempt_ram: int = setting(
        "--preempt-ram MiB",
        "LLAMA_ARG_PREEMPT_RAM",
        integer(UNLIMITED),
        8192,
        "host memory for parked chats; a chat that does not fit goes to --preempt-disk, or is "
        "computed again when it comes back; -1: no limit, 0: never copy",
    )
    preempt_disk: str | None = setting(
        "--preempt-disk DIR",
        "LLAMA_ARG_PREEMPT_DISK",
        folder,
        None,
        "folder for parked chats that do not fit in --preempt-ram",
        shown="none",
    )
    preempt_disk_limit: int = setting(
        "--preempt-disk-limit MiB",
        "LLAMA_ARG_PREEMPT_DISK_LIMIT",
        integer(UNLIMITED),
        8192,
        "most that parked chats take of --preempt-disk; -1: no limit",
    )
    cache_ram: int = setting(
        "-cram, --cache-ram MiB",
        "LLAMA_ARG_CACHE_RAM",
        integer(UNLIMITED),
        8192,
        "host memory for pages that left the pool and may be asked for again; -1: no limit, 0: "
        "keep none",
    )
    preempt_policy: str | None = setting(
        "--preempt-policy POLICY",
        "LLAMA_SERVER_PREEMPT_POLICY",
        choice(*VICTIM_POLICIES),
        None,
        f"which chat is parked: {', '.join(VICTIM_POLICIES)}; never the one with most tokens",
        shown="smallest; youngest with the watermark trigger",
    )
    preempt_trigger: str = setting(
        "--preempt-trigger TRIGGER",
        "LLAMA_SERVER_PREEMPT_TRIGGER",
        choice("lookahead", "watermark"),
        "lookahead",
        "when a chat is parked: when the coming steps do not fit (lookahead), or when use of the "
        "pool crosses --preempt-high (watermark)",
    )
    preempt_high: int = setting(
        "--preempt-high PERCENT",
        "LLAMA_SERVER_PREEMPT_HIGH",
        integer(1, 100),
        94,
        "watermark trigger: a chat is parked when more of the pool is used",
    )
    preempt_low: int = setting(
        "--preempt-low PERCENT",
        "LLAMA_SERVER_PREEMPT_LOW",
        integer(1, 100),
        80,
        "watermark trigger: a chat enters only while less of the pool is used",
    )
    preempt_resume: str = setting(
        "--preempt-resume ORDER",
        "LLAMA_SERVER_PREEMPT_RESUME",
        choice(*LINE_ORDERS),
        "head",
        "who enters, when more wait than fit: the one that has waited longest and nobody before it "
        "(head); likewise, but parked chats before new ones, which wait longer for it (parked); or "
        "whoever fits, most often parked first (pass), which can keep a large chat waiting for "
        "long",
    )
    preempt_starved: int = setting(
        "--preempt-starved N",
        "LLAMA_SERVER_PREEMPT_STARVED",
        integer(1),
        3,
        "parks after which a chat is passed over while another can be parked",
    )
    preempt_replay_margin: int = setting(
        "--preempt-replay-margin STEPS",
        "LLAMA_SERVER_PREEMPT_REPLAY_MARGIN",
        integer(0),
        32,
        "more than a page of a parked chat is computed again only when there is room for so many "
        "steps after that",
    )
    preempt_rotate: float = setting(
        "--preempt-rotate SECONDS",
        "LLAMA_SERVER_PREEMPT_ROTATE",
        number(0),
        2.0,
        "how long the head of the line waits before a chat that shifts its context makes way",
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
    exact: str = setting(
        "--exact MODE",
        "LLAMA_EXACT_CONCURRENCY",
        exactness,
        "auto",
        "whether text may depend on who else is served: `auto` says at load what is proven of this "
        "machine, `on` refuses to start unless everything is, `off` asks nothing",
    )
    check: bool = setting(
        "--check",
        "LLAMA_SERVER_CHECK",
        switch,
        False,
        "verify the pool's bookkeeping after every step instead of when idle",
    )

    preempt_every: int = setting(
        "N",
        "LLAMA_SERVER_PREEMPT_EVERY",
        integer(0),
        0,
        "park every chat after each N tokens it generates, so that every page it holds alone "
        "comes back from the host or is computed again",
        shown="0, off",
    )
    preempt_planner: bool = setting(
        "off",
        "LLAMA_SERVER_PREEMPT_PLANNER",
        switch,
        True,
        "park nobody ahead of time, only when a step has run out of pages",
    )
    record: str | None = setting(
        "FILE",
        "LLAMA_SERVER_RECORD",
        text,
        None,
        "add a line about every step to a file, for `kvalet simulate --calibrate`",
        shown="none",
    )
