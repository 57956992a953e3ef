"""State files over HTTP, written and read by the real engine (behaviour C3, X4)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvalet.cli.flags import ServeConfig
from kvalet.cli.serve import load_model
from kvalet.settings import changed
from tests.engine.tiny_models import write_tiny_llama
from tests.server.edge import Edge

pytestmark = pytest.mark.native

PROMPT = [40 + index * 7 % 50 for index in range(100)]
CHAT = {"prompt": PROMPT, "n_predict": 40, "temperature": 0, "ignore_eos": True, "id_slot": 1}
NUM_SAVED = 128  # of 100 + 40 tokens, of which the last was drawn and not computed
SAVE, RESTORE, ERASE = (f"/slots/1?action={action}" for action in ("save", "restore", "erase"))
FILE = {"filename": "chat.bin"}


@pytest.fixture(autouse=True)
def _facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@contextlib.contextmanager
def serving(model: Path, folder: Path) -> Iterator[Edge]:
    """A server from its start to its end."""
    config = changed(
        ServeConfig(),
        ctx_size=512,
        parallel=2,
        threads=1,
        exact="off",
        check=True,
        slot_save_path=folder,
    )
    served, _ = load_model(config, model)
    edge = Edge(settings=config.http)
    edge.state.open(served)
    try:
        yield edge
    finally:
        assert served.service.close()
        edge.close()


def num_cached(edge: Edge) -> int:
    """Tokens that the chat, asked for once more, need not compute."""
    again: int = edge.answer("/completion", {**CHAT, "n_predict": 1})["timings"]["cache_n"]
    return again


def test_a_chat_goes_on_after_a_restart(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, tmp_path) as edge:
        first = edge.answer("/completion", {**CHAT, "return_tokens": True})
        saved = edge.answer(SAVE, FILE)
        more = {**CHAT, "prompt": PROMPT + first["tokens"]}
        expected = edge.answer("/completion", more)["content"]
    assert (saved["n_saved"], saved["filename"]) == (NUM_SAVED, "chat.bin")
    assert saved["n_written"] == (tmp_path / "chat.bin").stat().st_size
    with serving(tiny, tmp_path) as edge:
        restored = edge.answer(RESTORE, FILE)
        assert (restored["n_restored"], restored["n_read"]) == (NUM_SAVED, saved["n_written"])
        slot = edge.get("/slots").json()[1]
        assert slot["is_held"] is True
        went_on = edge.answer("/completion", more)
    assert went_on["content"] == expected
    assert went_on["timings"]["cache_n"] == NUM_SAVED


def test_what_is_erased_is_computed_again(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, tmp_path) as edge:
        edge.answer("/completion", CHAT)
        assert num_cached(edge) == 96
        assert edge.answer(ERASE, {}) == {"id_slot": 1, "n_erased": 96}
        assert num_cached(edge) == 0


def test_another_models_file_is_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    with serving(other, tmp_path) as edge:
        edge.answer("/completion", CHAT)
        edge.answer(SAVE, FILE)
    with serving(tiny, tmp_path) as edge:
        error = edge.error(RESTORE, FILE)
        assert (error["param"], "chat.bin" in error["message"]) == ("filename", True)
        assert "model" in error["message"]
        assert num_cached(edge) == 0


def test_a_damaged_page_is_named_and_nothing_is_taken(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, tmp_path) as edge:
        edge.answer("/completion", CHAT)
        edge.answer(SAVE, FILE)
    path = tmp_path / "chat.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with serving(tiny, tmp_path) as edge:
        error = edge.error(RESTORE, FILE)
        assert (error["param"], "page 3 is damaged" in error["message"]) == ("filename", True)
        assert "chat.bin" in error["message"]
        assert num_cached(edge) == 0


def test_a_slot_without_a_past_has_nothing_to_save(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, tmp_path) as edge:
        assert edge.error(SAVE, FILE, 409)["type"] == "conflict_error"
        edge.answer("/completion", {**CHAT, "prompt": PROMPT[:8], "n_predict": 4})
        assert edge.error(SAVE, FILE, 409)["type"] == "conflict_error"
    assert not (tmp_path / "chat.bin").exists()
