"""The edge over the real engine thread and scheduler, with the deterministic engine under them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.real import RealEdge, real_edge

LONG = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "ignore_eos": True}


@pytest.fixture
def real() -> Iterator[RealEdge]:
    with real_edge() as edge:
        yield edge


def test_streamed_and_whole_say_the_same(real: RealEdge) -> None:
    whole = real.answer("/v1/chat/completions", {**CHAT, "seed": 4})
    chunks = real.stream("/v1/chat/completions", {**CHAT, "seed": 4})
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 20


def test_two_that_do_not_fit_together_both_finish(real: RealEdge) -> None:
    bodies = [{**LONG, "prompt": prompt} for prompt in ("one", "two")]
    alone = [real.answer("/v1/completions", body)["choices"][0]["text"] for body in bodies]
    with ThreadPoolExecutor(2) as pool:
        streams = list(pool.map(lambda body: real.stream("/v1/completions", body), bodies))
    texts = [
        "".join(event["choices"][0]["text"] for event in events if isinstance(event, dict))
        for events in streams
    ]
    assert texts == alone
    comments = [event for events in streams for event in events if isinstance(event, str)]
    assert comments.count(": preempted") == comments.count(": resumed") >= 1
    metrics = real.metrics()
    assert metrics["llamacpp:n_preempt_total"] >= 1
    assert metrics["llamacpp:preempt_bytes_in_total"] > 0
    assert metrics["llamacpp:kv_cells_used"] == metrics["llamacpp:preempt_ram_bytes"] == 0


def test_a_full_queue_is_503(real: RealEdge) -> None:
    bodies = [{**LONG, "prompt": str(number)} for number in range(12)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        responses = list(pool.map(lambda body: real.post("/v1/completions", body), bodies))
    statuses = [response.status_code for response in responses]
    assert set(statuses) == {200, 503}
    refused = responses[statuses.index(503)]
    assert int(refused.headers["retry-after"]) >= 1


def test_probabilities_reach_the_client(real: RealEdge) -> None:
    body = real.answer("/completion", {"prompt": "x", "n_predict": 3, "n_probs": 2, "seed": 1})
    assert len(body["completion_probabilities"]) == body["tokens_predicted"]


def test_slots_of_a_server_at_rest(real: RealEdge) -> None:
    assert [slot["state"] for slot in real.get("/slots").json()] == ["idle", "idle"]


def test_a_closed_engine_is_503(real: RealEdge) -> None:
    real.real.close()
    for response in (real.get("/health"), real.get("/slots"), real.post("/completion", LONG)):
        assert response.status_code == 503
