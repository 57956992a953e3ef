"""POST /slots/{id}?action=save|restore|erase: llama.cpp's answers, and no way out of the folder
(behaviour C3)."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kvalet.core.plan import pages_for
from kvalet.engine.host.statefile import StateHeader, read_header, write_state
from kvalet.errors import EngineError, StateFileGone
from kvalet.server import state
from kvalet.server.routes import slots
from kvalet.server.settings import ServerSettings
from kvalet.server.waiting import STEP_BOUNDARY_S, answered
from tests.server.edge import TIMEOUT_S, Edge

T = TypeVar("T")

TOKENS = tuple(range(64))
SAVE, RESTORE, ERASE = (f"/slots/1?action={action}" for action in ("save", "restore", "erase"))
BOTH = (SAVE, RESTORE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "states").mkdir()
    return tmp_path / "states"


@pytest.fixture
def saving(folder: Path) -> Iterator[Edge]:
    edge = Edge(settings=ServerSettings(slot_save_path=folder))
    yield edge
    edge.close()


def write(
    path: Path, edge: Edge, tokens: tuple[int, ...] = TOKENS, fingerprint: bytes | None = None
) -> None:
    root, page_bytes = fingerprint or edge.service.fingerprint, edge.service.page_bytes
    num_pages = max(2, pages_for(len(tokens)))
    with write_state(path, root, page_bytes, num_pages, tokens, durable=False) as add:
        for _ in range(num_pages):
            add(bytes(page_bytes))


def test_a_save_says_what_it_holds(saving: Edge, folder: Path) -> None:
    assert saving.answer(SAVE, {"filename": "chat.bin", "id": "cmpl-0"}) == {
        "id_slot": 1,
        "filename": "chat.bin",
        "n_saved": 96,
        "n_written": 4321,
        "timings": {"save_ms": 250.0},
    }
    assert saving.service.asked == [("save", 1, str(folder / "chat.bin"), "cmpl-0")]


def test_a_restore_hands_over_the_tokens_of_the_file(saving: Edge, folder: Path) -> None:
    write(folder / "chat.bin", saving)
    assert saving.answer(RESTORE, {"filename": "chat.bin", "timeout": 2.5}) == {
        "id_slot": 1,
        "filename": "chat.bin",
        "n_restored": 64,
        "n_read": 1234,
        "timings": {"restore_ms": 500.0},
    }
    assert saving.service.asked == [("restore", 1, str(folder / "chat.bin"), TOKENS, 2.5)]


def test_erasing_needs_no_folder_and_no_body(edge: Edge) -> None:
    assert edge.request("POST", ERASE).json() == {"id_slot": 1, "n_erased": 64}
    assert edge.answer(ERASE, {"id": "cmpl-0"}) == {"id_slot": 1, "n_erased": 64}
    assert edge.service.asked == [("erase", 1, None), ("erase", 1, "cmpl-0")]


@pytest.mark.parametrize("step", BOTH)
def test_without_the_flag_it_is_named(edge: Edge, step: str) -> None:
    error = edge.error(step, {"filename": "chat.bin"}, 501)
    assert error["type"] == "not_supported_error"
    assert "--slot-save-path" in error["message"]
    assert edge.service.asked == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a..b",
        "../chat.bin",
        "/etc/passwd",
        "sub/chat.bin",
        "chat.bin/",
        "..\\chat.bin",
        "a\\b",
        "a\0b",
        "a\nb",
        "a\x7fb",
        "a\x9fb",
        "x" * 256,
        "\u00e4" * 128,
        7,
        ["chat.bin"],
        None,
    ],
)
@pytest.mark.parametrize("step", BOTH)
def test_a_name_that_is_no_plain_file_name(saving: Edge, step: str, name: object) -> None:
    error = saving.error(step, {"filename": name})
    assert error["param"] == "filename"
    assert "'filename'" in error["message"]
    assert "is not a file" not in error["message"]  # refused before the folder is looked at
    assert saving.service.asked == []


@pytest.mark.parametrize("name", ["chat", "x" * 255, "a b.bin", "\u00e4" * 127, "a:b", "~", "-rf"])
def test_every_other_name_is_a_file_of_the_folder(saving: Edge, folder: Path, name: str) -> None:
    write(folder / name, saving)
    for step in BOTH:
        assert saving.answer(step, {"filename": name})["filename"] == name
    assert [asked[2] for asked in saving.service.asked] == [str(folder / name)] * 2


@pytest.mark.parametrize("step", BOTH)
def test_no_link_leads_out_of_the_folder(saving: Edge, folder: Path, step: str) -> None:
    write(folder.parent / "outside", saving)
    (folder / "file").symlink_to(folder.parent / "outside")
    (folder / "new").symlink_to(folder.parent / "nothing yet")
    (folder / "chain").symlink_to("file")
    for name in ("file", "new", "chain"):
        error = saving.error(step, {"filename": name})
        assert (error["param"], "leads out" in error["message"]) == ("filename", True)
    assert saving.service.asked == []


def test_a_link_within_the_folder_is_its_target(saving: Edge, folder: Path) -> None:
    write(folder / "chat.bin", saving)
    (folder / "latest").symlink_to("chat.bin")
    assert saving.answer(RESTORE, {"filename": "latest"})["filename"] == "latest"
    assert saving.service.asked == [("restore", 1, str(folder / "chat.bin"), TOKENS, 300.0)]


def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    edge = Edge(settings=ServerSettings(slot_save_path=folder.parent / "link"))
    assert edge.answer(SAVE, {"filename": "chat.bin"})["n_saved"] == 96
    edge.close()


@pytest.mark.parametrize("step", BOTH)
def test_what_is_there_but_no_file(saving: Edge, folder: Path, step: str) -> None:
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "self").symlink_to(".")
    for name in ("sub", "pipe", "self"):
        error = saving.error(step, {"filename": name})
        assert (error["param"], "is not a file" in error["message"]) == ("filename", True)


def test_an_absent_file_is_named(saving: Edge) -> None:
    error = saving.error(RESTORE, {"filename": "gone.bin"}, 404)
    assert (error["type"], error["param"]) == ("not_found_error", "filename")
    assert "gone.bin" in error["message"]


def test_a_file_that_is_not_the_engines_is_named(saving: Edge, folder: Path) -> None:
    write(folder / "foreign", saving, fingerprint=bytes(32))
    write(folder / "nameless", saving, tokens=())
    write(folder / "cut", saving)
    os.truncate(folder / "cut", (folder / "cut").stat().st_size - 1)
    (folder / "text").write_text("hello")
    for name in ("foreign", "nameless", "cut", "text"):
        error = saving.error(RESTORE, {"filename": name})
        assert (error["param"], name in error["message"]) == ("filename", True)
    assert saving.service.asked == []


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((*range(63), 258), "token 258, which the model does not have"),
        ((2**32 - 1, *range(63)), "token 4294967295, which the model does not have"),
        (tuple(range(160)), "160 tokens, more than n_ctx 128"),
    ],
)
def test_a_file_whose_tokens_this_server_cannot_take_is_named(
    saving: Edge, folder: Path, tokens: tuple[int, ...], words: str
) -> None:
    write(folder / "chat.bin", saving, tokens)
    error = saving.error(RESTORE, {"filename": "chat.bin"})
    assert error["param"] == "filename"
    assert error["message"] == f"state file chat.bin holds {words}"
    assert saving.service.asked == []


def test_a_file_that_is_too_long_is_not_read_to_find_that_out(saving: Edge, folder: Path) -> None:
    write(folder / "chat.bin", saving, tuple(range(160)))
    content = bytearray((folder / "chat.bin").read_bytes())
    content[100] ^= 1  # a token, so that the header would prove to be damaged
    (folder / "chat.bin").write_bytes(content)
    error = saving.error(RESTORE, {"filename": "chat.bin"})
    assert "160 tokens, more than n_ctx 128" in error["message"]


def test_a_file_that_fills_the_context_is_restored(saving: Edge, folder: Path) -> None:
    tokens = (*range(127), 257)
    write(folder / "chat.bin", saving, tokens)
    saving.answer(RESTORE, {"filename": "chat.bin"})
    assert saving.service.asked[0][3] == tokens


def test_a_file_that_is_slow_to_read_holds_up_no_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def read_slowly(*args: Any, **options: Any) -> StateHeader:  # noqa: ANN401  # as it is called
        began.set()
        assert may_end.wait(TIMEOUT_S)
        return read_header(*args, **options)

    monkeypatch.setattr(slots, "read_header", read_slowly)
    monkeypatch.setattr(state, "NUM_WORKERS", 1)
    edge = Edge(settings=ServerSettings(slot_save_path=folder))
    write(folder / "chat.bin", edge)
    with ThreadPoolExecutor(2) as pool:
        restoring = pool.submit(edge.answer, RESTORE, {"filename": "chat.bin"})
        assert began.wait(TIMEOUT_S)
        edge.answer("/v1/completions", {"prompt": "x"})
        assert not restoring.done()
        may_end.set()
        assert restoring.result(TIMEOUT_S)["n_restored"] == 64
    edge.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/slots/0?action=save", {"filename": "chat.bin"}, 409, None),
        ("/slots/0?action=restore", {"filename": "chat.bin"}, 409, None),
        ("/slots/0?action=erase", {}, 409, None),
        ("/slots/1?action=save", {"filename": "chat.bin", "id": "cmpl-9"}, 409, None),
        ("/slots/1?action=erase", {"id": "cmpl-9"}, 409, None),
        ("/slots/2?action=save", {"filename": "chat.bin"}, 404, "id_slot"),
        ("/slots/x?action=erase", {}, 404, "id_slot"),
        ("/slots/1?action=save", {}, 400, "filename"),
        ("/slots/1?action=restore", {}, 400, "filename"),
        ("/slots/1?action=save", {"filename": "chat.bin", "timeout": 1}, 400, "timeout"),
        ("/slots/1?action=restore", {"filename": "chat.bin", "timeout": 0}, 400, "timeout"),
        ("/slots/1?action=restore", {"filename": "chat.bin", "id": "cmpl-0"}, 400, "id"),
        ("/slots/1?action=erase", {"filename": "chat.bin"}, 400, "filename"),
    ],
)
def test_what_cannot_be_done_is_named(
    saving: Edge, folder: Path, path: str, body: dict[str, object], status: int, param: str | None
) -> None:
    write(folder / "chat.bin", saving)
    error = saving.error(path, body, status)
    assert (error["code"], error["param"]) == (status, param)


@pytest.mark.parametrize("step", BOTH)
def test_a_copy_that_fails_says_why(saving: Edge, folder: Path, step: str) -> None:
    write(folder / "chat.bin", saving)
    saving.service.copy_error = EngineError("cannot write chat.bin: No space left on device")
    error = saving.error(step, {"filename": "chat.bin"}, 500)
    assert error["message"].endswith("No space left on device")


def test_a_file_that_vanishes_while_it_is_restored_is_not_found(saving: Edge, folder: Path) -> None:
    write(folder / "chat.bin", saving)
    saving.service.copy_error = StateFileGone("there is no state file chat.bin")
    error = saving.error(RESTORE, {"filename": "chat.bin"}, 404)
    assert (error["type"], error["param"]) == ("not_found_error", "filename")


def test_a_disk_that_fails_is_not_the_client_s_fault(
    saving: Edge, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "chat.bin", saving)

    def fail(*args: object) -> StateHeader:
        raise EngineError("state file chat.bin: Input/output error")

    monkeypatch.setattr(slots, "read_header", fail)
    error = saving.error(RESTORE, {"filename": "chat.bin"}, 500)
    assert (error["type"], error["param"]) == ("server_error", None)


@pytest.mark.parametrize("step", BOTH)
def test_a_copy_is_waited_for_longer_than_a_step(
    saving: Edge, folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def noted(future: Future[T], timeout_s: float = STEP_BOUNDARY_S) -> T:
        waits.append(timeout_s)
        return await answered(future, timeout_s)

    monkeypatch.setattr(slots, "answered", noted)
    write(folder / "chat.bin", saving)
    saving.answer(step, {"filename": "chat.bin"})
    assert waits[0] > STEP_BOUNDARY_S


@pytest.mark.parametrize("step", BOTH)
def test_a_copy_is_not_waited_for_for_ever(
    saving: Edge, folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "chat.bin", saving)
    monkeypatch.setattr(slots, "COPY_TIMEOUT_S", 0.01)
    saving.service.copies_hang = True
    assert saving.error(step, {"filename": "chat.bin"}, 503)["message"] == "the engine is busy"
