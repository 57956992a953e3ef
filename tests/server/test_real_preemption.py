"""What clients see of preemption, over the real engine thread and scheduler."""

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.edge import on_socket, raw_request, wait_until
from tests.server.real import RealEdge, real_edge

DIALECTS: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "once upon a time"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "once upon a time"}]},
    "/completion": {"prompt": "once upon a time"},
}
COMPLETIONS = "/v1/completions"
LONG: dict[str, object] = {"prompt": "x", "max_tokens": 150, "ignore_eos": True, "seed": 1}
PINNED = {**LONG, "id_slot": 0}
SLOW_S = 0.05  # a step, while a test has to be there before a chat ends
DATA = rb"(data: [^\n]+\n\n)+"


def stream(url: str, path: str, body: Mapping[str, object]) -> bytes:
    with raw_request(url, path, {**body, "stream": True}) as response:
        return response.read_to_end()


def chunks(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(data) for data in re.findall(rb"data: (\{[^\n]+\})\n\n", body)]


def pieces(body: bytes) -> Iterator[tuple[int, str]]:
    """What each chunk of a stream adds to which choice, in any dialect."""
    for chunk in chunks(body):
        choice = chunk["choices"][0] if "choices" in chunk else chunk
        text = choice.get("content") or choice.get("text") or choice.get("delta", {}).get("content")
        yield choice["index"], text or ""


def text_of(body: bytes, index: int = 0) -> str:
    return "".join(text for found, text in pieces(body) if found == index)


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("budget", [None, 0])
def test_forced_parks_are_told_and_change_no_text(path: str, budget: int | None) -> None:
    body = {**DIALECTS[path], "n_predict": 40, "ignore_eos": True, "seed": 1}
    with real_edge() as edge, on_socket(edge) as url:
        quiet = stream(url, path, body)
    with real_edge(preempt_every=8, host_budget_pages=budget) as edge, on_socket(edge) as url:
        parked = stream(url, path, body)
    assert re.fullmatch(DATA + rb"(: preempted\n\n: resumed\n\n" + DATA + rb"){4}", parked)
    assert list(pieces(parked)) == list(pieces(quiet))
    timings = chunks(parked)[-1]["timings"]
    assert timings["n_preempt"] == 4
    assert (timings["n_recompute"] > 0) is (budget == 0)


def test_a_request_that_waits_for_room_before_its_first_token_is_told_first() -> None:
    late: dict[str, object] = {**LONG, "prompt": "z" * 150, "max_tokens": 5, "stream": True}
    with real_edge(step_s=SLOW_S) as edge, on_socket(edge) as url, ThreadPoolExecutor(1) as pool:
        leader = pool.submit(stream, url, COMPLETIONS, {**LONG, "prompt": "y" * 100})
        wait_until(lambda: edge.metrics()["llamacpp:requests_processing"] == 1)
        with raw_request(url, COMPLETIONS, late) as response:
            response.read_until(b": preempted\n\n")
            edge.step_s = 0
            waited = response.read_to_end()
        assert re.fullmatch(rb": preempted\n\n: resumed\n\n" + DATA, waited)
        assert b": preempted" not in leader.result()
        assert edge.metrics()["llamacpp:n_preempt_total"] == 0


def test_a_family_larger_than_slots_and_pool_says_what_it_says_with_ample_room() -> None:
    body = {**LONG, "prompt": "p" * 40, "max_tokens": 100, "n": 5}
    with real_edge(num_pages=64, num_slots=5) as edge:
        ample = edge.answer(COMPLETIONS, body)
    with real_edge() as edge, on_socket(edge) as url:
        tight = stream(url, COMPLETIONS, body)
        assert (
            edge.answer(COMPLETIONS, {**LONG, "max_tokens": 3})["usage"]["completion_tokens"] == 3
        )
        metrics = edge.metrics()
    wanted = [choice["text"] for choice in ample["choices"]]
    assert [text_of(tight, index) for index in range(5)] == wanted
    assert len(set(wanted)) == 5
    assert ample["usage"]["prompt_tokens"] == 41
    assert metrics["llamacpp:n_preempt_total"] >= 1
    assert metrics["llamacpp:preempt_bytes_in_total"] > 0
    assert metrics["llamacpp:kv_cells_used"] == metrics["llamacpp:preempt_ram_bytes"] == 0
    for index in range(5):
        own = re.findall(rb": (preempted|resumed) %d\n\n" % index, tight)
        assert own == [b"preempted", b"resumed"] * (len(own) // 2)


def test_the_first_choice_is_that_of_a_request_for_one() -> None:
    body = {**LONG, "max_tokens": 20}
    with real_edge() as edge:
        (one,) = edge.answer(COMPLETIONS, body)["choices"]
        first, second = edge.answer(COMPLETIONS, {**body, "n": 2})["choices"]
    assert first["text"] == one["text"] != second["text"]


def slot(edge: RealEdge) -> dict[str, Any]:
    view: dict[str, Any] = edge.get("/slots").json()[0]
    return view


def test_a_chat_is_parked_and_resumed_by_hand() -> None:
    with real_edge() as edge, on_socket(edge) as url:
        alone = stream(url, COMPLETIONS, PINNED)
        edge.step_s = SLOW_S
        with raw_request(url, COMPLETIONS, {**PINNED, "stream": True}) as response:
            name = chunks(response.read_until(b"}\n\n"))[0]["id"]
            asked = edge.answer("/slots/0?action=park", {"id": name})
            assert (asked["request_id"], asked["is_held"]) == (name, True)
            response.read_until(b": preempted\n\n")
            view = slot(edge)
            assert (view["state"], view["is_preempted"]) == ("preempted", True)
            assert (view["preempt_mode"], view["n_cells"], view["n_preempt"]) == ("swap", 0, 1)
            assert edge.error("/slots/0?action=park", {}, 409)["type"] == "conflict_error"
            assert edge.error("/slots/0?action=resume", {"id": "cmpl-0"}, 409)["param"] == "id"
            edge.step_s = 0
            wait_until(lambda: slot(edge)["parked_ms"] >= 50)
            edge.answer("/slots/0?action=resume", {"id": name})
            parked = response.read_to_end()
    assert text_of(parked) == text_of(alone)
    assert re.fullmatch(DATA + rb": preempted\n\n: resumed\n\n" + DATA, parked)
    assert chunks(parked)[-1]["timings"]["parked_ms"] >= 50


def test_a_chat_parked_by_hand_comes_back_by_itself_in_time() -> None:
    with (
        real_edge(step_s=SLOW_S) as edge,
        on_socket(edge) as url,
        raw_request(url, COMPLETIONS, {**PINNED, "stream": True}) as response,
    ):
        response.read_until(b"}\n\n")
        edge.answer("/slots/0?action=park", {"timeout": 0.1})
        edge.step_s = 0
        assert b": preempted\n\n: resumed\n\n" in response.read_to_end()


def test_what_an_idle_slot_holds_is_parked_and_brought_back() -> None:
    with real_edge() as edge:
        name = edge.answer(COMPLETIONS, LONG)["id"]
        assert edge.answer("/slots/0?action=park", {"id": name})["is_held"]
        wait_until(lambda: edge.metrics()["llamacpp:preempt_ram_bytes"] > 0)
        assert not slot(edge)["is_processing"]
        assert not edge.answer("/slots/0?action=resume", {})["is_held"]
        wait_until(lambda: edge.metrics()["llamacpp:preempt_ram_bytes"] == 0)
        assert edge.error("/slots/1?action=park", {}, 409)["type"] == "conflict_error"
        assert edge.error("/slots/2?action=park", {}, 404)["param"] == "id_slot"


def test_an_endless_chat_keeps_what_it_is_told_to() -> None:
    body = {**LONG, "prompt": "k" * 40, "max_tokens": 400, "n_keep": 40}
    with real_edge(context_shift=True) as edge:
        kept = edge.answer(COMPLETIONS, body)
        again = edge.answer(COMPLETIONS, body)
        other = edge.answer(COMPLETIONS, {**body, "n_keep": 0, "n_discard": 64})
    for answer in (kept, again, other):
        assert answer["usage"]["completion_tokens"] == 400
    assert kept["choices"][0]["text"] == again["choices"][0]["text"] != other["choices"][0]["text"]
