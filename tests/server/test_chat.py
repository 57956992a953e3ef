"""POST /v1/chat/completions, streaming and not."""

import pytest

from kvalet.core.plan import FinishReason
from tests.server.edge import Edge
from tests.server.fakes import BOS, says

CHAT = {"messages": [{"role": "user", "content": "hi"}], "seed": 5}
PATH = "/v1/chat/completions"


def test_a_whole_answer(edge: Edge) -> None:
    body = edge.answer(PATH, CHAT)
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    num_prompt = len(b"[user]hi[assistant]") + 1
    assert body["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 5,
        "total_tokens": num_prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert body["seed"] == 5


def test_timings_are_llamacpps_and_ours(edge: Edge) -> None:
    timings = edge.answer(PATH, CHAT)["timings"]
    assert timings["predicted_n"] == 5
    assert timings["predicted_per_token_ms"] == 10.0
    assert timings["predicted_per_second"] == 100.0
    assert (timings["n_preempt"], timings["n_recompute"], timings["parked_ms"]) == (2, 0, 7.0)


def test_a_stream_has_a_role_the_text_and_a_reason(edge: Edge) -> None:
    *chunks, done = edge.stream(PATH, CHAT)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"].get("content") for choice in choices[1:-1]] == list("hello")
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["timings"]["predicted_n"] == 5
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_usage_comes_last_and_only_when_asked_for(edge: Edge) -> None:
    *_, usage, done = edge.stream(PATH, {**CHAT, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    without = edge.stream(PATH, CHAT)
    assert not any("usage" in chunk for chunk in without[:-1])


@pytest.mark.parametrize("alias", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_limits_have_three_names(edge: Edge, alias: str) -> None:
    body = edge.answer(PATH, {**CHAT, alias: 2})
    assert body["choices"][0]["message"]["content"] == "he"
    assert body["choices"][0]["finish_reason"] == "length"


def test_the_context_ending_is_length(edge: Edge) -> None:
    edge.service.script = says("long", FinishReason.CONTEXT)
    assert edge.answer(PATH, CHAT)["choices"][0]["finish_reason"] == "length"


def test_the_template_sees_parts_names_and_options(edge: Edge) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]
    body = {"messages": messages, "chat_template_kwargs": {"thinking": False}}
    edge.answer(PATH, body)
    prompt = edge.service.submitted[-1].prompt
    assert bytes(prompt[1:]) == b"[system]x[user]a\nb{thinking=False}[assistant]"


def test_bos_comes_once(edge: Edge) -> None:
    edge.answer(PATH, CHAT)
    assert edge.service.submitted[-1].prompt.count(BOS) == 1


def test_logprobs(edge: Edge) -> None:
    body = edge.answer(PATH, {**CHAT, "logprobs": True, "top_logprobs": 2})
    first = body["choices"][0]["logprobs"]["content"][0]
    h = ord("h")
    assert first["token"] == "h"
    assert first["bytes"] == [h]
    assert first["logprob"] == -0.5
    assert [(top["id"], top["logprob"]) for top in first["top_logprobs"]] == [
        (h, -0.5),
        (h + 1, -1.5),
    ]


def test_logprobs_in_a_stream(edge: Edge) -> None:
    chunks = edge.stream(PATH, {**CHAT, "logprobs": True})
    tokens = [
        entry["token"]
        for chunk in chunks[:-1]
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert tokens == list("hello")


def test_no_template_no_chat() -> None:
    edge = Edge(template=False)
    assert edge.error(PATH, CHAT)["param"] == "messages"
    edge.close()


def test_what_the_template_refuses_is_the_clients_fault(edge: Edge) -> None:
    error = edge.error(PATH, {"messages": [{"role": "system", "content": "x"}]})
    assert error["message"] == "the template refuses it"


def test_a_random_seed_is_reported_and_used(edge: Edge) -> None:
    seeds = set()
    for seed in (None, -1, 2**32 - 1):
        body = edge.answer(PATH, {**CHAT, "seed": seed})
        assert body["seed"] == edge.service.submitted[-1].sampling.seed
        seeds.add(body["seed"])
    assert len(seeds) == 3
