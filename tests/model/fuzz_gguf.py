"""Run as a program by test_gguf.py: loads damaged copies of files, one after another.

The first file is damaged everywhere, the others, vocabularies, at random. Exits 0 if each copy
either loaded, with all it holds readable, or gave a one-line ModelFileError. An abort inside ggml
ends this process, which is why it is one of its own.
"""

import ctypes
import mmap
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from kvalet.errors import ModelFileError
from kvalet.model.chat_template import ChatTemplate
from kvalet.model.gguf import GGUFFile
from kvalet.model.tokenizer import Tokenizer

NAME = Path("damaged.gguf")
VALUES = (0x00, 0x01, 0x80, 0xFF)
RANDOM_COPIES = 400
TEXT = "the <|end|> \U0001f600"


def damaged_everywhere(whole: bytes) -> Iterator[bytes]:
    for length in range(1, len(whole)):
        yield whole[:length]
    for position in range(len(whole)):
        for value in VALUES:
            yield whole[:position] + bytes([value]) + whole[position + 1 :]


def damaged_at_random(whole: bytes) -> Iterator[bytes]:
    rng = random.Random(7)
    for _ in range(RANDOM_COPIES):
        copy = bytearray(whole)
        for position in rng.sample(range(len(copy)), rng.randint(1, 4)):
            copy[position] = rng.choice((*VALUES, rng.randrange(256)))
        yield bytes(copy)


def try_load(content: bytes) -> bool:
    mapping = mmap.mmap(-1, len(content))
    mapping.write(content)
    try:
        with GGUFFile(NAME, mapping) as file:
            read_all(file)
    except ModelFileError as error:
        message = str(error)
        if "\n" in message or not message.startswith(f"{NAME}: ") or message.endswith(": "):
            raise RuntimeError(f"not one clear line: {message!r}") from error
        return False
    return True


def read_all(file: GGUFFile) -> None:
    for tensor in file.tensors.values():
        ctypes.string_at(file.address(tensor), tensor.num_bytes)
    if "tokenizer.ggml.model" in file.metadata:
        tokenizer = Tokenizer.from_gguf(file)
        tokenizer.encode(TEXT, add_bos=True, parse_special=True)
        tokenizer.decode(range(tokenizer.num_vocab), special=True)
        ChatTemplate.from_gguf(file)


def main() -> None:
    small, *vocabularies = [Path(name).read_bytes() for name in sys.argv[1:]]
    loaded = [try_load(copy) for copy in damaged_everywhere(small)]
    for whole in vocabularies:
        loaded += [try_load(copy) for copy in damaged_at_random(whole)]
    sys.stdout.write(f"{loaded.count(True)} {loaded.count(False)}")


if __name__ == "__main__":
    main()
