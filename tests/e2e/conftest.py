"""Real servers for the tests of this folder, each started once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvalet.bench.process import ServerProcess
from tests.engine.tiny_models import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_model: Path) -> Iterator[ServerProcess]:
    with ServerProcess("-m", str(tiny_model), "--check") as server:
        yield server


@pytest.fixture(scope="session")
def smollm2() -> Iterator[ServerProcess]:
    """The default model in a pool of 24 pages, which one chat may fill."""
    with ServerProcess("-c", "768", "--check") as server:
        yield server
