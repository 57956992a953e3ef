"""SHA-256 of model files, and a note beside a file of what it was, so that it is not read again.

A note holds for the file as it was: size and times of last change must still be the same.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 20


def compute(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """In hex. `on_bytes` is told of each part read. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def recall(path: Path) -> str | None:
    """What the note beside the file says, or None if there is none or the file has changed."""
    try:
        note = json.loads(_note(path).read_bytes())
        is_same = note["file"] == _identity(path)
        return str(note["sha256"]) if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(path: Path, sha256: str) -> None:
    """Write the note. Raises OSError."""
    text = json.dumps({"sha256": sha256, "file": _identity(path)})
    _note(path).write_text(text + "\n")


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
