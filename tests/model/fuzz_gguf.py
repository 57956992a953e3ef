"""Run as a program by test_gguf.py: opens damaged copies of a file, one after another.

Exits 0 if each either opened, with all its tensors readable, or gave a one-line ModelFileError.
An abort inside ggml ends this process, which is why it is one of its own.
"""

import ctypes
import mmap
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile

NAME = Path("damaged.gguf")
VALUES = (0x00, 0x01, 0x80, 0xFF)
RANDOM_COPIES = 500


def damaged(whole: bytes) -> Iterator[bytes]:
    for length in range(len(whole)):
        yield whole[:length]
    for position in range(len(whole)):
        for value in VALUES:
            yield whole[:position] + bytes([value]) + whole[position + 1 :]
    rng = random.Random(7)
    for _ in range(RANDOM_COPIES):
        copy = bytearray(whole)
        for position in rng.sample(range(len(copy)), rng.randint(2, 8)):
            copy[position] = rng.choice((*VALUES, rng.randrange(256)))
        yield bytes(copy)


def try_open(content: bytes) -> bool:
    if not content:
        return False  # cannot be mapped; `open` says so
    mapping = mmap.mmap(-1, len(content))
    mapping.write(content)
    try:
        with GGUFFile(NAME, mapping) as file:
            for tensor in file.tensors.values():
                ctypes.string_at(file.address(tensor), tensor.num_bytes)
    except ModelFileError as error:
        message = str(error)
        if "\n" in message or not message.startswith(f"{NAME}: ") or message.endswith(": "):
            raise RuntimeError(f"not one clear line: {message!r}") from error
        return False
    return True


def main() -> None:
    opened = [try_open(copy) for copy in damaged(Path(sys.argv[1]).read_bytes())]
    sys.stdout.write(f"{opened.count(True)} {opened.count(False)}")


if __name__ == "__main__":
    main()
