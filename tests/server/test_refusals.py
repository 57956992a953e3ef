"""What a client may get wrong: always a 4xx in one shape that names the field, never a 500."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvalet.errors import RequestError
from kvalet.server.dialects.body import IGNORED, REFUSED, Body
from kvalet.server.dialects.chat import ChatBody
from kvalet.server.dialects.completions import CompletionBody
from kvalet.server.dialects.llamacpp import LlamaBody
from kvalet.server.settings import ServerSettings
from tests.server.edge import Edge
from tests.server.fakes import ByteTokenizer, FakeService

COMPLETION = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[Edge]:
    edge = Edge()
    yield edge
    edge.close()


@pytest.fixture
def edge(shared: Edge) -> Edge:
    """One for all, since nothing here gets far."""
    shared.service.submitted.clear()
    return shared


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1.5]]}, "prompt"),
        ({"prompt": [{"prompt_string": "x"}]}, "prompt"),
        ({"prompt": [258]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": ["x"] * 257}, "prompt"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -1}, "min_p"),
        ({"typical_p": 2}, "typical_p"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"presence_penalty": 101}, "presence_penalty"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"logit_bias": 3}, "logit_bias"),
        ({"logit_bias": {"97": "much"}}, "logit_bias"),
        ({"logit_bias": {"97": True}}, "logit_bias"),
        ({"logit_bias": {"97": 1e9}}, "logit_bias"),
        ({"logit_bias": [[97]]}, "logit_bias"),
        ({"logit_bias": [[9.5, 1]]}, "logit_bias"),
        ({"logit_bias": [[258, 1]]}, "logit_bias"),
        ({"logit_bias": {"258": 1}}, "logit_bias"),
        ({"logprobs": 101}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"more": 1}}, "stream_options.more"),
        ({"id_slot": 2}, "id_slot"),
        ({"priority": 2**40}, "priority"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"n": 3, "prompt": ["x"] * 100}, "n"),
        ({"n_cmpl": 3, "prompt": ["x"] * 100}, "n_cmpl"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 2, "n": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": "1"}, "best_of"),
        ({"priority": 1.5}, "priority"),
        ({"n_keep": -2}, "n_keep"),
        ({"n_keep": "all"}, "n_keep"),
        ({"n_discard": -1}, "n_discard"),
        ({"sse_ping_interval": 0.01}, "sse_ping_interval"),
        ({"sse_ping_interval": -2}, "sse_ping_interval"),
        ({"sse_ping_interval": 1e10}, "sse_ping_interval"),
        ({"sse_ping_interval": "1"}, "sse_ping_interval"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"mirostat": 1}, "mirostat"),
        ({"frobnicate": 1}, "frobnicate"),
    ],
)
def test_a_faulty_field_is_named(edge: Edge, fields: dict[str, Any], param: str) -> None:
    error = edge.error(COMPLETION, {"prompt": "x", **fields})
    assert (error["param"], error["type"], error["code"]) == (param, "invalid_request_error", 400)
    assert param.partition(".")[0] in error["message"]
    assert edge.service.num_live == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [*MESSAGES, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [{}]}, "functions"),
        ({"audio": {}}, "audio"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
    ],
)
def test_a_faulty_chat_field_is_named(edge: Edge, fields: dict[str, Any], param: str) -> None:
    error = edge.error(CHAT, {"messages": MESSAGES, **fields})
    assert error["param"] == param
    assert edge.service.submitted == []


@pytest.mark.parametrize("path", [COMPLETION, CHAT, "/completion", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"prompt=hello&max_tokens=3",
    ],
)
def test_a_body_that_is_no_json_object(edge: Edge, path: str, body: bytes) -> None:
    response = edge.request("POST", path, body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_what_asks_for_nothing_is_taken(edge: Edge) -> None:
    neutral = {name: values[0] for name, values in REFUSED.items() if values}
    harmless = dict.fromkeys(IGNORED, "anything")
    nulls = dict.fromkeys(REFUSED)
    for extra in (neutral, harmless, nulls):
        assert edge.post(COMPLETION, {"prompt": "x", **extra}).status_code == 200


def test_a_prompt_that_cannot_fit(edge: Edge) -> None:
    for body in ({"prompt": "x" * 127}, {"prompt": "x" * 127, "stream": True, "max_tokens": 0}):
        error = edge.error(COMPLETION, body)
        assert error["type"] == "exceed_context_size_error"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (128, 128)


def test_one_prompt_of_several_that_cannot_fit_runs_none(edge: Edge) -> None:
    edge.error(COMPLETION, {"prompt": ["x", "y" * 200]})
    assert edge.service.submitted == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_says_when_to_come_back(stream: bool) -> None:
    edge = Edge(FakeService(max_live=0))
    response = edge.post(COMPLETION, {"prompt": "x", "stream": stream})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["type"] == "unavailable_error"
    edge.close()


def test_a_body_beyond_the_limit() -> None:
    edge = Edge(settings=ServerSettings(max_body_bytes=100))
    announced = edge.post(COMPLETION, {"prompt": "x" * 200})
    chunks = (b'{"prompt": "' + b"x" * 60, b"x" * 60 + b'"}')

    async def unannounced() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    streamed = edge.request("POST", COMPLETION, unannounced())
    for response in (announced, streamed):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == 413
    edge.close()


def test_no_such_route_and_wrong_method(edge: Edge) -> None:
    missing = edge.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "not_found_error"
    wrong = edge.get(COMPLETION)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == 405


def test_our_own_bugs_do_not_speak(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(edge.service, "submit_all", broken)
    response = edge.post(COMPLETION, {"prompt": "x"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from([ChatBody, CompletionBody, LlamaBody]))
def test_no_json_gets_past_as_anything_but_a_request_or_a_refusal(
    data: st.DataObject, kind: type[Body]
) -> None:
    names = st.sampled_from([*kind.model_fields, *REFUSED, "other"])
    body = data.draw(st.dictionaries(names, JSON, max_size=5))
    with contextlib.suppress(RequestError):
        kind.parse(json.dumps(body).encode())


def test_a_text_that_cannot_fit_is_refused_without_being_tokenised(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> list[int]:
        raise AssertionError("tokenised all the same")

    monkeypatch.setattr(ByteTokenizer, "encode", refuse)
    error = edge.error(COMPLETION, {"prompt": "a" * 1_000_000})
    assert error["type"] == "exceed_context_size_error"
    assert "at least" in error["message"]
