from pathlib import Path

import pytest

from tests.engine.tiny_models import write_tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(autouse=True)
def _pace_of_a_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are hardly longer than its copies: a small share of one would bear none."""
    monkeypatch.setattr("kvalet.engine.host.copier.PACE_SHARE", 1.0)
