"""A long text that is tokenised holds up no other thread: neither the engine's nor a signal."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.engine.tiny_models import write_tiny_llama

from kvalet.model.gguf import GGUFFile
from kvalet.model.tokenizer import Tokenizer


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_other_threads_go_on_meanwhile(kind: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", tokenizer=kind)
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(path))
    with ThreadPoolExecutor(1) as pool:
        start = seen = time.monotonic()
        encoding = pool.submit(tokenizer.encode, "the of and his word " * 20_000)
        longest_s = 0.0
        while not encoding.done():
            time.sleep(0.001)
            now = time.monotonic()
            seen, longest_s = now, max(longest_s, now - seen)
    assert encoding.result()
    assert longest_s < (seen - start) / 2
