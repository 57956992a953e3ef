"""Preemption as its flags and endpoints show it: real processes on a tiny model.

What needs no process is in `tests/preemption`; there the keys and values are compared too.
"""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from kvalet.bench.process import ServerProcess
from kvalet.core.plan import pages_for
from tests.e2e.client import TIMEOUT_S, complete, complete_together, get, metrics, post, wait_until
from tests.engine.tiny_models import write_tiny_llama

Body: TypeAlias = dict[str, Any]

STREAMS = ("/v1/completions", "/v1/chat/completions", "/completion")
AT_REST = (
    *("kv_cells_used", "kv_cells_shared", "preempt_ram_bytes", "preempt_disk_bytes"),
    *("requests_processing", "requests_deferred", "requests_preempted", "requests_waiting"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its pages are of 64 KiB, so that a MiB holds some of what is parked and not all."""
    path = tmp_path_factory.mktemp("models") / "wide.gguf"
    return write_tiny_llama(path, n_kv_head=4, head_dim=64)


@dataclass(frozen=True, slots=True)
class Quiet:
    """An ample server, for requests alone; asked once for each."""

    url: str
    _answers: dict[str, Body] = field(default_factory=dict[str, Body])

    def answer(self, body: Body) -> Body:
        key = json.dumps(body)
        if key not in self._answers:
            alone = {**body, "cache_prompt": False}
            self._answers[key] = post(self.url, "/v1/completions", alone)
        return self._answers[key]

    def check(self, bodies: list[Body], choices: list[Body]) -> None:
        assert choices == [self.answer(body)["choices"][0] for body in bodies]


@pytest.fixture(scope="module")
def quiet(model: Path) -> Iterator[Quiet]:
    with ServerProcess("-m", str(model), "-c", "2048", "-t", "1") as server:
        yield Quiet(server.url)


def serve(model: Path, *flags: str, env: dict[str, str] | None = None) -> ServerProcess:
    return ServerProcess("-m", str(model), "-t", "1", "--check", *flags, env=env)


def greedy(salt: int, num_prompt: int, num_tokens: int, **more: object) -> Body:
    """Token ids, other ones from the first on for each salt."""
    prompt = [20 + (salt * 31 + i * 7) % 200 for i in range(num_prompt)]
    base = {"max_tokens": num_tokens, "temperature": 0, "seed": 1, "ignore_eos": True}
    return {"prompt": prompt, **base, **more}


def at_rest(url: str) -> dict[str, float]:
    """The metrics, once nothing is held any more."""
    wait_until(lambda: not any(metrics(url)[name] for name in AT_REST))
    assert all(not slot["is_processing"] and slot["n_cells"] == 0 for slot in get(url, "/slots"))
    return metrics(url)


NO_STORE = ("--preempt-ram", "0", "--cache-ram", "0")


@pytest.mark.parametrize(
    ("flags", "modes"),
    [
        ((), {"swap"}),
        (("--preempt-ram", "-1"), {"swap"}),
        (NO_STORE, {"recompute"}),
        (("--preempt-policy", "largest", "--preempt-resume", "pass"), {"swap"}),
        (("--preempt-trigger", "watermark", *NO_STORE), {"recompute"}),
    ],
    ids=" ".join,
)
def test_four_chats_that_do_not_fit(
    model: Path, quiet: Quiet, flags: tuple[str, ...], modes: set[str]
) -> None:
    bodies = [greedy(salt, 60 + 40 * salt, 180, logprobs=2) for salt in (1, 2, 3)]
    bodies.append(greedy(4, 80, 180, temperature=0.9, seed=3))
    with serve(model, "-c", "512", *flags) as server:
        choices = complete_together(server.url, bodies)
        after = at_rest(server.url)
    quiet.check(bodies, choices)
    moved = {mode: after[f"n_preempt_{mode}_total"] for mode in ("swap", "recompute")}
    assert {mode for mode, count in moved.items() if count} == modes
    assert sum(moved.values()) == after["n_preempt_total"] == after["n_resume_total"]
    assert (after["preempt_bytes_in_total"] > 0) == ("swap" in modes)
    assert (after["n_recompute_tokens_total"] > 0) == ("recompute" in modes)
    assert after["n_preempt_fail_total"] == 0


def test_a_budget_among_the_park_sizes_moves_both_counters(model: Path, quiet: Quiet) -> None:
    """A MiB holds the 5 pages of the one, and not the 19 of the other."""
    bodies = [greedy(1, 100, 64), greedy(2, 560, 64)]
    env = {"LLAMA_SERVER_PREEMPT_EVERY": "30"}
    with serve(model, "-c", "1024", "--preempt-ram", "1", env=env) as server:
        choices = complete_together(server.url, bodies)
        after = at_rest(server.url)
        page_bytes = get(server.url, "/props")["pool"]["page_bytes"]
    quiet.check(bodies, choices)
    assert (after["n_preempt_swap_total"], after["n_preempt_recompute_total"]) == (2, 2)
    moved = (pages_for(100 + 29) + pages_for(100 + 59)) * page_bytes
    assert after["preempt_bytes_out_total"] == after["preempt_bytes_in_total"] == moved
    assert after["n_recompute_tokens_total"] == (560 + 29) + (560 + 59)


@pytest.mark.parametrize("ram", ["8192", "0"])
def test_a_forced_park_shows_in_the_timings_alone(model: Path, quiet: Quiet, ram: str) -> None:
    """Usage and timings are those of the request as made."""
    body = greedy(1, 100, 64)
    alone = quiet.answer(body)
    env = {"LLAMA_SERVER_PREEMPT_EVERY": "8"}
    with serve(model, "-c", "512", "--preempt-ram", ram, env=env) as server:
        forced = post(server.url, "/v1/completions", body)
        after = at_rest(server.url)
        assert "test knob set: LLAMA_SERVER_PREEMPT_EVERY=8" in server.output()
    assert forced["choices"] == alone["choices"]
    assert forced["usage"] == alone["usage"]
    same = ("prompt_n", "cache_n", "predicted_n")
    assert [forced["timings"][name] for name in same] == [alone["timings"][name] for name in same]
    assert forced["timings"]["n_preempt"] == 7
    dropped = sum(100 + n - 1 for n in range(8, 64, 8))
    assert forced["timings"]["n_recompute"] == (dropped if ram == "0" else 0)
    assert forced["timings"]["parked_ms"] > 0
    moved = sum(pages_for(100 + n - 1) for n in range(8, 64, 8)) * 65536 if ram != "0" else 0
    assert after["preempt_bytes_out_total"] == after["preempt_bytes_in_total"] == moved


def test_without_preemption_exactly_one_ends_with_the_error(model: Path, quiet: Quiet) -> None:
    bodies = [greedy(1, 200, 800), greedy(2, 100, 800)]  # long, so that they surely meet
    with serve(model, "-c", "1024", "--no-preempt") as server:

        def ask(body: Body) -> httpx.Response:
            return httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S)

        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(ask, bodies))
        after = at_rest(server.url)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert [answer.json()["error"]["message"] for answer in refused] == [
        "Context size has been exceeded."
    ]
    ((body, answer),) = [
        (body, answer)
        for body, answer in zip(bodies, answers, strict=True)
        if answer.status_code == 200
    ]
    quiet.check([body], answer.json()["choices"])
    assert after["n_preempt_total"] == 0


@pytest.mark.parametrize("store", [("--preempt-ram", "-1"), NO_STORE], ids=["all", "none"])
def test_the_last_resort(model: Path, quiet: Quiet, store: tuple[str, ...]) -> None:
    bodies = [greedy(salt, 90 + salt, 200) for salt in (1, 2, 3, 4)]
    env = {"LLAMA_SERVER_PREEMPT_PLANNER": "off"}
    with serve(model, "-c", "512", *store, env=env) as server:
        choices = complete_together(server.url, bodies)
        after = at_rest(server.url)
        assert "test knob set: LLAMA_SERVER_PREEMPT_PLANNER=off" in server.output()
    quiet.check(bodies, choices)
    assert after["n_preempt_total"] == after["n_resume_total"] >= 1
    assert (after["preempt_bytes_in_total"] > 0) == (store != NO_STORE)
    assert (after["n_recompute_tokens_total"] > 0) == (store == NO_STORE)
    assert after["prompt_tokens_total"] == 91 + 92 + 93 + 94


def test_endless_chats_take_turns(model: Path) -> None:
    """Each alone is compared on a server of the same context, which is what decides its shifts."""
    bodies = [greedy(salt, 50, 700, n_keep=20) for salt in (1, 2)]
    flags = ("-c", "256", "--context-shift", "--preempt-rotate", "0.05")
    with serve(model, *flags) as server:
        choices = complete_together(server.url, bodies)
        after = at_rest(server.url)
        alone = [complete(server.url, {**body, "cache_prompt": False}) for body in bodies]
    assert choices == alone
    assert after["n_preempt_swap_total"] == after["n_preempt_total"] >= 1
    assert after["preempt_bytes_out_total"] > 0 < after["preempt_bytes_in_total"]


def test_two_choices_in_a_pool_for_one_and_the_next_request(model: Path, quiet: Quiet) -> None:
    family = greedy(1, 100, 110, temperature=0.9, seed=5, n=2)
    with serve(model, "-c", "224") as server:
        answer = post(server.url, "/v1/completions", family)
        after_family = at_rest(server.url)
        later = complete(server.url, greedy(2, 40, 20))
    alone = quiet.answer(family)
    assert answer["choices"] == alone["choices"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["text"] != answer["choices"][1]["text"]
    assert answer["usage"] == alone["usage"]
    assert after_family["n_preempt_swap_total"] == after_family["n_preempt_total"] >= 1
    assert after_family["preempt_bytes_in_total"] > 0
    quiet.check([greedy(2, 40, 20)], [later])


def events(url: str, path: str, body: Body) -> tuple[list[str], list[Body]]:
    """Comments, and the events without what differs from one request to the next."""
    request = {**body, "stream": True}
    if "chat" in path:
        text = "".join(f"{token} " for token in request.pop("prompt"))
        request["messages"] = [{"role": "user", "content": text}]
    comments: list[str] = []
    found: list[Body] = []
    with httpx.stream("POST", url + path, json=request, timeout=TIMEOUT_S) as response:
        for line in response.iter_lines():
            if line.startswith(":"):
                comments.append(line)
            elif line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                own = ("id", "created", "timings", "id_slot", "tokens_cached")
                found.append({name: event[name] for name in event if name not in own})
    return comments, found


@pytest.mark.parametrize("ram", ["8192", "0"])
def test_notices_come_in_order_on_every_endpoint_and_change_no_event(
    model: Path, quiet: Quiet, ram: str
) -> None:
    body = greedy(1, 30, 60, cache_prompt=False)
    env = {"LLAMA_SERVER_PREEMPT_EVERY": "8"}
    with serve(model, "-c", "512", "--preempt-ram", ram, env=env) as server:
        for path in STREAMS:
            comments, forced = events(server.url, path, body)
            assert comments == [": preempted", ": resumed"] * 7
            assert ([], forced) == events(quiet.url, path, body)
            assert len(forced) > 30
        after = at_rest(server.url)
    assert after["n_preempt_total"] == 7 * len(STREAMS)
    assert (after["preempt_bytes_in_total"] > 0) == (ram == "8192")
    assert (after["n_recompute_tokens_total"] > 0) == (ram == "0")


def test_a_slot_is_parked_and_resumed_by_hand(model: Path, quiet: Quiet) -> None:
    body = greedy(1, 60, 1500)  # long enough to be caught running
    with serve(model, "-c", "2048") as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(complete, server.url, body)
        wait_until(lambda: get(server.url, "/slots")[0]["state"] == "decode")
        slot = get(server.url, "/slots")[0]
        other = httpx.post(f"{server.url}/slots/0?action=park", json={"id": "another"})
        assert other.status_code == 409
        post(server.url, "/slots/0?action=park", {"id": slot["request_id"]})
        wait_until(lambda: get(server.url, "/slots")[0]["state"] == "preempted")
        parked = get(server.url, "/slots")[0]
        assert (parked["is_held"], parked["preempt_mode"]) == (True, "swap")
        assert metrics(server.url)["preempt_ram_bytes"] > 0
        assert httpx.post(f"{server.url}/slots/0?action=park").status_code == 409
        post(server.url, "/slots/0?action=resume", {})
        quiet.check([body], [answer.result()])
        at_rest(server.url)


def test_everybody_leaving_at_once_leaves_nothing(model: Path) -> None:
    """Endless chats, some parked, some running, some in the queue."""
    flags = ("-c", "256", "--context-shift", "--preempt-ram", "1", "--preempt-rotate", "0.05")
    with serve(model, *flags) as server:
        waiting = [send(server.url, greedy(salt, 60, 10**6)) for salt in range(1, 9)]
        wait_until(lambda: metrics(server.url)["n_preempt_total"] >= 3)
        assert metrics(server.url)["requests_deferred"] == 4
        for connection in waiting:
            connection.close()
        at_rest(server.url)
        assert complete(server.url, greedy(9, 60, 10))["finish_reason"] == "length"


def send(url: str, body: Body) -> socket.socket:
    """Ask, and do not wait for the answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    text = json.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(text)}\r\n\r\n"
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    connection.sendall((head + text).encode())
    return connection
