"""Copies to the host and to disk: processes, files and faults (behaviour A1, C3, C4, X4)."""

import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from kvalet.bench.process import ServerProcess
from tests.e2e.client import TIMEOUT_S, complete, complete_together, metrics, post, wait_until
from tests.engine.tiny_models import write_tiny_llama

Body: TypeAlias = dict[str, Any]
Damage: TypeAlias = Callable[[bytes], bytes]

EVERY = {"LLAMA_SERVER_PREEMPT_EVERY": "8"}
STATE = {"filename": "state.kvalet"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its pages are of 64 KiB: a MiB of RAM holds 16 of them."""
    path = tmp_path_factory.mktemp("models") / "wide.gguf"
    return write_tiny_llama(path, n_kv_head=4, head_dim=64)


def serve(model: Path, *flags: str, env: dict[str, str] | None = None) -> ServerProcess:
    return ServerProcess("-m", str(model), "-t", "1", "--check", *flags, env=env)


def greedy(salt: int, num_prompt: int, num_tokens: int) -> Body:
    """Token ids, other ones from the first on for each salt."""
    prompt = [20 + (salt * 31 + i * 7) % 200 for i in range(num_prompt)]
    return {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}


BODIES = [greedy(salt, 560 + 40 * salt, 60) for salt in (1, 2, 3)]  # a MiB does not hold one


@pytest.fixture(scope="module")
def answers(model: Path) -> list[Body]:
    """To BODIES, each alone."""
    with serve(model, "-c", "2048", "--cache-ram", "0") as server:
        return [complete(server.url, body | {"cache_prompt": False}) for body in BODIES]


@pytest.mark.parametrize(
    "copies", ["--preempt-mirror=on", "--preempt-mirror=off", "--no-preempt-async"]
)
def test_every_way_to_copy_gives_the_same_text(
    model: Path, answers: list[Body], copies: str
) -> None:
    """In a pool that holds two of the three, parked every few tokens besides. Without the copier's
    thread a copy lands in its own step, so none is beside one."""
    with serve(model, "-c", "1536", copies, env=EVERY) as server:
        assert complete_together(server.url, BODIES) == answers
        after = metrics(server.url)
    assert after["n_preempt_swap_total"] == after["n_preempt_total"] >= 3 * 7
    assert after["n_resume_total"] == after["n_preempt_total"]
    assert after["preempt_bytes_out_total"] > 0 < after["preempt_bytes_in_total"]
    assert (after["mirror_bytes_total"] > 0) == (copies == "--preempt-mirror=on")
    assert (after["n_steps_beside_copy_total"] > 0) == (copies != "--no-preempt-async")
    assert after["preempt_ram_bytes"] == after["kv_cells_used"] == 0


def test_what_does_not_fit_in_ram_is_parked_on_disk(
    model: Path, answers: list[Body], tmp_path: Path
) -> None:
    flags = ("-c", "2560", "--preempt-ram", "1", "--preempt-disk", str(tmp_path))
    with serve(model, *flags, env=EVERY) as server:
        assert complete_together(server.url, BODIES) == answers
        after = metrics(server.url)
        assert after["n_recompute_tokens_total"] == 0
        assert after["n_preempt_swap_total"] == after["n_preempt_total"] == 3 * 7
        assert (
            server.output().count(" park: ") == server.output().count(" mode=disk ") // 2 == 3 * 7
        )
        assert after["preempt_bytes_in_total"] > 0
        assert after["preempt_disk_bytes"] == after["preempt_ram_bytes"] == 0
        assert pages_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_budget_that_is_full_leads_to_computing_again(
    model: Path, answers: list[Body], tmp_path: Path
) -> None:
    disk = ("--preempt-disk", str(tmp_path), "--preempt-disk-limit", "0")
    with serve(model, "-c", "2560", "--preempt-ram", "1", *disk, env=EVERY) as server:
        assert complete_together(server.url, BODIES) == answers
        after = metrics(server.url)
        assert after["n_preempt_recompute_total"] == after["n_preempt_total"] == 3 * 7
        assert after["preempt_bytes_out_total"] == after["preempt_bytes_in_total"] == 0
        assert after["n_recompute_tokens_total"] > 0


def test_killed_while_parking_to_disk(model: Path, answers: list[Body], tmp_path: Path) -> None:
    """The next start removes what was left and nothing else, and serves as ever."""
    (tmp_path / "notes.txt").write_text("the user's own")
    flags = ("-c", "2560", "--preempt-ram", "1", "--preempt-disk", str(tmp_path))
    endless = [body | {"max_tokens": 1500} for body in BODIES]
    with serve(model, *flags, env=EVERY) as server, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(complete, server.url, body) for body in endless]
        kill_with_pages_on_disk(server, tmp_path)
        assert all(isinstance(one.exception(TIMEOUT_S), httpx.HTTPError) for one in asked)
    assert pages_in(tmp_path) != []
    with serve(model, *flags, env=EVERY) as server:
        assert pages_in(tmp_path) == []
        assert httpx.get(f"{server.url}/health", timeout=TIMEOUT_S).status_code == 200
        assert complete_together(server.url, BODIES) == answers
        after = metrics(server.url)
        assert after["n_preempt_swap_total"] == after["n_preempt_total"] == 3 * 7
        assert after["preempt_bytes_in_total"] > 0 == after["n_recompute_tokens_total"]
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def kill_with_pages_on_disk(server: ServerProcess, folder: Path) -> None:
    """Stopped first, so that what is seen there is what is left."""

    def is_caught() -> bool:
        server.process.send_signal(signal.SIGSTOP)
        if pages_in(folder):
            return True
        server.process.send_signal(signal.SIGCONT)
        return False

    wait_until(is_caught, timeout_s=60.0)
    server.process.kill()
    server.process.wait(10)


def pages_in(folder: Path) -> list[Path]:
    """Files of pages, whole or not."""
    found = [path for path in folder.glob("kvalet-*/*") if path.is_file()]
    return [path for path in found if path.name != "lock"]


def flipped(at: float) -> Damage:
    """A bit, so far into the file."""

    def damage(data: bytes) -> bytes:
        index = int(at * (len(data) - 1))
        return data[:index] + bytes([data[index] ^ 4]) + data[index + 1 :]

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "empty": (lambda data: b"", "is not a state file"),
    "a few bytes": (lambda data: data[:20], "is cut short"),
    "half the header": (lambda data: data[:200], "is cut short"),
    "a byte short": (lambda data: data[:-1], "is cut short"),
    "a byte long": (lambda data: data + b"!", "after its end"),
    "another kind": (lambda data: b"GGUF" + data[4:], "is not a state file"),
    "first byte": (flipped(0.0), "is not a state file"),
    "a token": (lambda data: data[:100] + flipped(0.0)(data[100:]), "damaged header"),
    "middle": (flipped(0.5), "is damaged"),
    "last byte": (flipped(1.0), "is damaged"),
}


@dataclass(frozen=True, slots=True)
class Saved:
    """A server with a state file of BODIES[0], whose pages it has forgotten since."""

    url: str
    folder: Path
    state: bytes

    def check_refused(self, state: bytes, complaint: str) -> None:
        """A restore fails saying why, and has changed nothing."""
        (self.folder / STATE["filename"]).write_bytes(state)
        path = f"{self.url}/slots/0?action=restore"
        response = httpx.post(path, json=STATE, timeout=TIMEOUT_S)
        assert 400 <= response.status_code < 600
        message = response.json()["error"]["message"]
        assert complaint in message
        assert STATE["filename"] in message
        assert metrics(self.url)["preempt_ram_bytes"] == 0

    def check_cold(self, answer: Body) -> None:
        """BODIES[0] is answered as ever, with nothing found; what it leaves is forgotten again."""
        reply = post(self.url, "/v1/completions", BODIES[0] | {"id_slot": 0})
        assert reply["choices"] == [answer]
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        post(self.url, "/slots/0?action=erase", {})


@pytest.fixture(scope="module")
def saved(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    folder = tmp_path_factory.mktemp("states")
    with serve(model, "-c", "1024", "--slot-save-path", str(folder)) as server:
        complete(server.url, BODIES[0] | {"id_slot": 0})
        post(server.url, "/slots/0?action=save", STATE)
        post(server.url, "/slots/0?action=erase", {})
        yield Saved(server.url, folder, (folder / STATE["filename"]).read_bytes())


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_state_file_is_refused(saved: Saved, answers: list[Body], how: str) -> None:
    damage, complaint = DAMAGES[how]
    saved.check_refused(damage(saved.state), complaint)
    saved.check_cold(answers[0])


def test_a_foreign_state_file_is_refused(saved: Saved, answers: list[Body], tmp_path: Path) -> None:
    """Of a model of the same shape with other weights."""
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1, n_kv_head=4, head_dim=64)
    with serve(other, "-c", "1024", "--slot-save-path", str(tmp_path)) as server:
        complete(server.url, BODIES[0] | {"id_slot": 0})
        post(server.url, "/slots/0?action=save", STATE)
    state = (tmp_path / STATE["filename"]).read_bytes()
    assert len(state) == len(saved.state)
    saved.check_refused(state, "another model")
    saved.check_cold(answers[0])


def test_the_whole_file_is_taken(saved: Saved, answers: list[Body]) -> None:
    (saved.folder / STATE["filename"]).write_bytes(saved.state)
    post(saved.url, "/slots/0?action=restore", STATE)
    reply = post(saved.url, "/v1/completions", BODIES[0] | {"id_slot": 0})
    assert reply["choices"] == [answers[0]]
    num_prompt = len(BODIES[0]["prompt"])
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (num_prompt - 1) // 32 * 32
    post(saved.url, "/slots/0?action=erase", {})


def test_a_save_that_cannot_be_written_leaves_the_old_file(saved: Saved) -> None:
    name = {"filename": "a folder"}
    (saved.folder / name["filename"]).mkdir(exist_ok=True)
    complete(saved.url, BODIES[1] | {"id_slot": 0})
    path = f"{saved.url}/slots/0?action=save"
    assert httpx.post(path, json=name, timeout=TIMEOUT_S).status_code >= 400
    outside = {"filename": "../outside"}
    assert httpx.post(path, json=outside, timeout=TIMEOUT_S).status_code == 400
    post(saved.url, "/slots/0?action=erase", {})
    shutil.rmtree(saved.folder / name["filename"])
