"""A chat as its client sees it, from the lines of its stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from kvalet.bench import chats
from kvalet.bench.chats import Chat, ChatState, MomentKind, event_lines, stream_chat


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its last number is the time."""
    times = [0.0]
    monkeypatch.setattr(chats, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    return times


def piece(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]})


def end(num_parks: int) -> str:
    choice = {"delta": {}, "finish_reason": "length"}
    timings = {"n_preempt": num_parks, "cache_n": 32, "prompt_n": 7}
    return "data: " + json.dumps({"choices": [choice], "timings": timings})


def test_pauses_and_gaps_are_apart(clock: list[float]) -> None:
    chat = Chat("a", {})
    script = [
        (0.0, piece("x")),
        (0.1, piece("y")),
        (0.2, ": preempted"),
        (2.2, ": preempt-keepalive"),
        (5.2, ": resumed"),
        (5.3, piece("z")),
        (5.5, piece("!")),
        (5.5, end(1)),
    ]
    for now, line in script:
        clock.append(now)
        chat.take(line)
    assert chat.text == "xyz!"
    assert chat.pauses_s == [5.0]
    assert chat.gaps_s == pytest.approx([0.1, 0.2])
    assert (chat.num_cached, chat.num_computed) == (32, 7)
    assert (chat.num_parks, chat.parked_s()) == (1, 5.0)


def test_a_chat_that_waits_for_its_first_token_is_not_parked(clock: list[float]) -> None:
    chat = Chat("a", {})
    chat.take(": preempted")
    assert chat.state is ChatState.PARKED
    clock.append(3.0)
    assert (chat.num_parks, chat.parked_s()) == (0, 0.0)
    for line in (": resumed", piece("x"), end(0)):
        chat.take(line)
    assert (chat.num_parks, chat.pauses_s, chat.text) == (0, [], "x")


def test_a_pause_that_lasts_counts_until_now(clock: list[float]) -> None:
    chat = Chat("a", {})
    chat.take(piece("x"))
    chat.take(": preempted")
    clock.append(4.0)
    assert (chat.num_parks, chat.parked_s()) == (1, 4.0)


def test_the_time_to_the_first_piece_begins_with_the_request(clock: list[float]) -> None:
    chat = Chat("a", {})
    assert chat.first_piece_s is None
    clock.append(1.0)
    chat.note(MomentKind.SENT)
    clock.append(1.5)
    chat.take(piece("x"))
    clock.append(2.0)
    chat.take(piece("y"))
    assert chat.first_piece_s == 0.5


def test_waits_include_the_pauses(clock: list[float]) -> None:
    chat = Chat("a", {})
    for now, line in [(0, piece("x")), (1, ": preempted"), (5, ": resumed"), (6, piece("y"))]:
        clock.append(now)
        chat.take(line)
    assert (chat.gaps_s, chat.waits_s) == ([], [6.0])


@pytest.mark.parametrize(
    ("body", "reason", "counted", "is_complete"),
    [
        ({}, "length", 3, True),
        ({}, "length", 2, False),  # the server had no room for more
        ({}, "length", 0, True),  # it does not count
        ({"ignore_eos": True}, "stop", 0, False),  # it does not count either, but was told not to
        ({}, "content_filter", 0, False),
        ({}, "stop", 2, True),
        ({"ignore_eos": True}, "stop", 2, False),
        ({}, None, 3, False),
    ],
)
def test_complete(
    body: dict[str, Any], reason: str | None, counted: int, is_complete: bool
) -> None:
    chat = Chat("a", {"max_tokens": 3, **body})
    chat.take(piece("x"))
    usage = {"completion_tokens": counted, "prompt_tokens": 8}
    choice: dict[str, Any] = {"delta": {}, "finish_reason": reason}
    chat.take("data:" + json.dumps({"choices": [choice], "usage": usage if counted else None}))
    chat.take("data:[DONE]") if counted else chat.take("data: [DONE]")
    chat.end()
    assert chat.is_complete is is_complete
    assert chat.has_stopped_early is (not is_complete and reason is not None)
    assert chat.problem.startswith("stopped early") is chat.has_stopped_early


def test_of_a_server_that_does_not_count_pieces_are_counted() -> None:
    chat = Chat("a", {"max_tokens": 300})
    for line in (piece("x"), piece("y"), end(0)):
        chat.take(line)
    chat.end()
    assert (chat.is_complete, chat.num_tokens) == (True, 2)


def test_an_error_is_a_text_or_has_one() -> None:
    for told in ("no room", {"message": "no room", "code": 500}):
        chat = Chat("a", {"max_tokens": 3})
        chat.take("data: " + json.dumps({"error": told}))
        chat.end()
        assert (chat.state, chat.problem) == (ChatState.FAILED, "failed: no room")
        assert not chat.is_complete
        assert not chat.has_stopped_early


def test_lines_end_with_a_newline_and_nothing_else() -> None:
    text = "a\u0085b\u2028c\u00e9"
    sent = f'data: "{text}"\n\n: resumed\r\n\n'.encode()

    async def chunks() -> AsyncIterator[bytes]:
        for byte in sent:  # characters are split too
            yield bytes([byte])

    async def read() -> list[str]:
        return [line async for line in event_lines(httpx.Response(200, content=chunks()))]

    assert asyncio.run(read()) == [f'data: "{text}"', "", ": resumed", ""]


def streamed(*lines: bytes) -> Chat:
    """A chat whose server sends these lines."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"".join(line + b"\n\n" for line in lines))

    async def ask() -> Chat:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return await stream_chat(http, Chat("", {"max_tokens": 1}))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "data",
    [
        *(b"[1, 2]", b"null", b"{", b'"x"', b"\xff\xfe", b"[" * 100_000, b"9" * 5_000),
        *(b'{"usage": "x"}', b'{"usage": {"completion_tokens": "many"}}', b'{"timings": 5}'),
        *(b'{"choices": ["x"]}', b'{"choices": [{"delta": "x"}]}'),
        b'{"choices": [{"delta": {"content": [1]}}]}',
    ],
)
def test_what_is_no_event_is_a_failure_of_its_chat(data: bytes) -> None:
    chat = streamed(b"data: " + data)
    assert chat.state is ChatState.FAILED
    assert chat.error.startswith("no event of a chat completion: ")


def test_what_a_server_leaves_out_is_no_failure() -> None:
    chat = streamed(
        b'data: {"choices": null, "usage": {"total_tokens": 3}, "error": null}',
        b'data: {"choices": [{"delta": null}, {"delta": {"content": "a"}, "index": 0}]}',
        b'data: {"choices": [{"finish_reason": "length", "logprobs": {}}], "extra": [1]}',
        b"data: [DONE]",
    )
    assert (chat.state, chat.text, chat.num_tokens) == (ChatState.DONE, "a", 1)
    assert not chat.is_counted
