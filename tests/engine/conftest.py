"""Every engine that there is, for the tests of what all of them promise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvalet.engine.base import Engine
from kvalet.engine.fake import FakeEngine
from kvalet.engine.ggml.engine import load_engine
from kvalet.model.gguf import GGUFFile
from tests.engine.contract import NUM_PAGES
from tests.engine.tiny_models import write_tiny_llama

ENGINES = [
    "fake",
    "fake, late copies",
    pytest.param("ggml", marks=pytest.mark.native),
    pytest.param("ggml, asynchronous copies", marks=pytest.mark.native),
]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Iterator[Engine]:
    kind, _, copies = request.param.partition(", ")
    made: Engine = (
        FakeEngine(NUM_PAGES, transfer_steps=3 if copies else 0)
        if kind == "fake"
        else load_engine(
            GGUFFile.open(tiny_model),
            num_pages=NUM_PAGES,
            threads=2,
            max_step_tokens=512,
            poison=True,
            async_copies=bool(copies),
            disk_dir=tmp_path,
        )
    )
    yield made
    made.close()
