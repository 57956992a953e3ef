"""What the HTTP side can be told."""

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from kvalet.settings import integer, number, setting, text

NO_LIMIT = -1


def folder(path: str) -> Path:
    if not Path(path).is_dir():
        raise ValueError("an existing folder")
    return Path(path)


def writable_folder(path: str) -> Path:
    try:
        with NamedTemporaryFile(dir=folder(path)):
            return Path(path)
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


def keys(given: str) -> tuple[str, ...]:
    return (text(given),)


def num_tokens(given: str) -> int | None:
    """None: no limit."""
    value = integer(NO_LIMIT)(given)
    return None if value == NO_LIMIT else value


@dataclass(frozen=True, slots=True)
class ServerSettings:
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
    api_keys: tuple[str, ...] = setting(
        "--api-key KEY",
        "LLAMA_API_KEY",
        keys,
        (),
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
    max_new_tokens: int | None = setting(
        "-n, --predict N",
        "LLAMA_ARG_N_PREDICT",
        num_tokens,
        None,
        "most tokens generated for a request that does not say how many; -1: no limit",
        shown="until the context is full",
    )
    sse_ping_interval_s: float = setting(
        "--sse-ping-interval SECONDS",
        "LLAMA_ARG_SSE_PING_INTERVAL",
        integer(-1),
        30,
        "a stream that stays silent for so long gets a comment, `: ping`; 0 or -1: never",
    )
    park_timeout_s: float = setting(
        "--park-timeout SECONDS",
        "LLAMA_SERVER_PARK_TIMEOUT",
        number(0),
        300.0,
        "how long a slot stays parked on request when the request does not say",
    )
    drain_s: float = setting(
        "--drain-seconds SECONDS",
        "LLAMA_SERVER_DRAIN_SECONDS",
        number(0),
        0.0,
        "how long chats, saves and restores may go on after SIGTERM, while new ones get 503",
    )
    slot_save_path: Path | None = setting(
        "--slot-save-path DIR",
        "LLAMA_ARG_SLOT_SAVE_PATH",
        writable_folder,
        None,
        "folder of the files that `POST /slots/{id}?action=save` writes and `restore` reads",
        shown="none",
    )
    max_body_bytes: int = 64 << 20
