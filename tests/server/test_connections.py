"""On real sockets: clients that leave, read slowly, or talk through OpenAI's own library."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import openai
import pytest

from kvalet.core.plan import FinishReason
from kvalet.core.request import Request
from kvalet.errors import Overloaded
from kvalet.runtime.messages import Event, Preempted, Resumed
from tests.builders import said
from tests.server.edge import LiveEdge, live_edge, wait_until
from tests.server.fakes import Script, by_choice, by_prompt, endless, plays, says, silent

PROMPTS: dict[str, object] = {"prompt": ["a", "b"], "max_tokens": None}


@contextmanager
def request(live: LiveEdge, body: dict[str, object]) -> Iterator[socket.socket]:
    host, port = live.url.removeprefix("http://").split(":")
    payload = json.dumps(body).encode()
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(payload)}"
        sock.sendall(f"{head}\r\n\r\n".encode() + payload)
        yield sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        received = sock.recv(65536)
        assert received, data
        data += received
    return data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abrupt", [False, True])
def test_a_client_that_leaves_is_cancelled(live: LiveEdge, stream: bool, abrupt: bool) -> None:
    live.says(endless)
    with request(live, {**PROMPTS, "stream": stream}) as sock:
        wait_until(lambda: live.service.num_live == 2)
        if stream:
            read_until(sock, b"data: ")
        if abrupt:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wait_until(lambda: live.service.num_live == 0)
    assert sorted(live.service.cancelled) == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_is_cancelled(
    live: LiveEdge, stream: bool
) -> None:
    live.says(silent)
    with request(live, {**PROMPTS, "stream": stream}):
        wait_until(lambda: live.service.num_live == 2)
    wait_until(lambda: live.service.num_live == 0)


def test_a_client_that_leaves_touches_no_other_stream(live: LiveEdge) -> None:
    live.says(by_prompt(stays=says("x" * 100), goes=endless))
    with request(live, {"prompt": "stays", "stream": True}) as stays:
        with request(live, {"prompt": "goes", "stream": True}) as goes:
            read_until(goes, b"data: ")
        assert read_until(stays, b"[DONE]").count(b'"text":"x"') == 100
    wait_until(lambda: live.service.num_live == 0)


def test_a_client_that_does_not_read_holds_up_no_other(live: LiveEdge) -> None:
    live.says(plays(*[[said("x" * 10_000)]] * 400))
    with request(live, {"prompt": "slow", "stream": True}):
        wait_until(lambda: live.service.num_live == 0)  # all of it was generated meanwhile
        live.says(says("quick"))
        with request(live, {"prompt": "other", "stream": True}) as other:
            assert b"[DONE]" in read_until(other, b"[DONE]")


def test_a_shutdown_tells_every_client() -> None:
    with live_edge() as live:
        live.says(endless)
        with (
            request(live, {"prompt": "a", "stream": True}) as streaming,
            request(live, {"prompt": "a"}) as waiting,
        ):
            read_until(streaming, b"data: ")
            wait_until(lambda: live.service.num_live == 2)
            live.state.close(Overloaded("the server is shutting down"))
            assert b" 503 " in read_until(waiting, b"shutting down")
            last = read_until(streaming, b"0\r\n\r\n").split(b"data: ")[-1]
            assert json.loads(last.split(b"\n")[0])["error"]["code"] == 503
        assert len(live.service.cancelled) == 2


def test_half_a_request_harms_no_other(live: LiveEdge) -> None:
    live.says(says("hello"))
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        )
    with request(live, {"prompt": "x"}) as other:
        assert b"hello" in read_until(other, b"hello")
    assert len(live.service.submitted) == 1


@pytest.fixture
def client(live: LiveEdge) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{live.url}/v1", api_key="none", timeout=20, max_retries=0
    ) as client:
        yield client


def test_openais_client_chats(live: LiveEdge, client: openai.OpenAI) -> None:
    live.says(says("hello"))
    answer = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content == "hello"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert [entry.token for entry in answer.choices[0].logprobs.content] == list("hello")


def test_openais_client_streams(live: LiveEdge, client: openai.OpenAI) -> None:
    live.says(says("hello", FinishReason.STOP_STRING, "!"))
    chunks = list(
        client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


def test_openais_client_completes(live: LiveEdge, client: openai.OpenAI) -> None:
    live.says(says("hello"))
    answer = client.completions.create(model="any", prompt=["a", "b"], max_tokens=4, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["hell", "hell"]
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == list("hell")
    assert [model.id for model in client.models.list()] == ["tiny"]


def parked_then(text: str) -> Script:
    """Clients see its notices as comments, which they pass over."""

    def script(generation: Request) -> Iterator[Sequence[Event]]:
        yield from ([Preempted()], [], [], [Resumed()])
        yield from says(text)(generation)

    return script


def test_openais_client_gets_its_choices(live: LiveEdge, client: openai.OpenAI) -> None:
    live.says(by_choice(says("one"), parked_then("two"), says("three")))
    chunks = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "hi"}], n=3, stream=True
    )
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["one", "two", "three"]


def test_openais_client_understands_our_errors(live: LiveEdge, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="any", prompt="x", best_of=3)
    assert caught.value.param == "best_of"
    live.says(endless)
    stream = client.completions.create(model="any", prompt="x", stream=True)
    next(stream)
    stream.close()
    wait_until(lambda: live.service.num_live == 0)


def test_the_path_of_a_token_is_short(live: LiveEdge) -> None:
    """Thousands of tokens a second through one loop: no per-token tasks, threads or models."""
    number = 3000
    live.says(says("x" * number))
    live.service.step_s = 0.0
    start = time.perf_counter()
    with request(live, {"prompt": "x", "stream": True}) as sock:
        read_until(sock, b"[DONE]")
    assert (time.perf_counter() - start) / number < 0.001
