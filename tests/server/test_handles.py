"""Several sequences in one request: `n` choices of each of its prompts (behaviour P11)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from kvalet.core.plan import FinishReason
from kvalet.core.request import Request
from kvalet.runtime.messages import Event
from tests.builders import said
from tests.server.edge import Edge
from tests.server.fakes import by_choice, finished, says

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
CHAT_BODY = {"messages": [{"role": "user", "content": "hi"}]}


def test_choices_are_numbered_prompt_by_prompt_and_drawn_apart(edge: Edge) -> None:
    body = edge.answer(COMPLETIONS, {"prompt": ["a", "b"], "n": 3, "seed": 5})
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3, 4, 5]
    submitted = edge.service.submitted
    assert [g.index for g in submitted] == [0, 1, 2, 3, 4, 5]
    keys = [(g.sampling.seed, g.sampling.prompt_index, g.sampling.choice) for g in submitted]
    assert keys == [(5, prompt, choice) for prompt in (0, 1) for choice in (0, 1, 2)]
    assert [bytes(g.prompt[1:]) for g in submitted] == [b"a"] * 3 + [b"b"] * 3
    assert {g.request_id for g in submitted} == {body["id"]}


def test_each_choice_has_its_own_text_and_end(edge: Edge) -> None:
    edge.service.script = by_choice(
        says("one"), says("two", FinishReason.CONTEXT), says("three", FinishReason.STOP_STRING, "!")
    )
    choices = edge.answer(CHAT, {**CHAT_BODY, "n": 3, "logprobs": True})["choices"]
    assert [c["message"]["content"] for c in choices] == ["one", "two", "three"]
    assert [c["finish_reason"] for c in choices] == ["stop", "length", "stop"]
    tokens = [[entry["token"] for entry in c["logprobs"]["content"]] for c in choices]
    assert tokens == [list("one"), list("two"), list("three")]


def test_a_stream_of_choices(edge: Edge) -> None:
    edge.service.script = by_choice(says("one"), says("three"))
    *chunks, done = edge.stream(CHAT, {**CHAT_BODY, "n": 2})
    assert done == "[DONE]"
    for index, text in enumerate(("one", "three")):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in own) == text
        assert [choice["finish_reason"] for choice in own][-2:] == [None, "stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_counts_once_in_usage(edge: Edge, stream: bool) -> None:
    cached = (32, 64, 64, 0, 0, 0)

    def script(generation: Request) -> Iterator[Sequence[Event]]:
        last = finished(generation, generation.index + 1)
        timings = replace(last.timings, cache_n=cached[generation.index])
        return iter([[said("x")], [replace(last, timings=timings)]])

    edge.service.script = script
    body = {"prompt": ["ab", "c"], "n": 3}
    if stream:
        events = edge.stream(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        usage = events[-2]["usage"]
    else:
        usage = edge.answer(COMPLETIONS, body)["usage"]
    assert usage == {
        "prompt_tokens": 3 + 2,
        "completion_tokens": 1 + 2 + 3 + 4 + 5 + 6,
        "total_tokens": 5 + 21,
        "prompt_tokens_details": {"cached_tokens": 32},
    }


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
def test_llamacpps_dialect_has_two_names_for_it(edge: Edge, name: str) -> None:
    bodies = edge.answer("/completion", {"prompt": ["a", "b"], name: 2, "n_predict": 1})
    assert [body["index"] for body in bodies] == [0, 1, 2, 3]
    assert [body["prompt"] for body in bodies] == ["<s>a", "<s>a", "<s>b", "<s>b"]
    chunks = edge.stream("/completion", {"prompt": "a", name: 2, "n_predict": 1})
    assert [chunk["index"] for chunk in chunks if chunk["stop"]] in ([0, 1], [1, 0])


def test_llamacpps_name_goes_first(edge: Edge) -> None:
    assert len(edge.answer(COMPLETIONS, {"prompt": "a", "n": 2, "n_cmpl": 3})["choices"]) == 3


@pytest.mark.parametrize("nothing", [{"n": 1}, {"n": None}, {"best_of": 1}, {"n": 1, "best_of": 1}])
def test_one_choice_is_one_answer(edge: Edge, nothing: dict[str, object]) -> None:
    assert len(edge.answer(COMPLETIONS, {"prompt": "a", **nothing})["choices"]) == 1


def test_choices_of_nothing(edge: Edge) -> None:
    body = edge.answer(COMPLETIONS, {"prompt": "once", "n": 2, "max_tokens": 0})
    assert [choice["text"] for choice in body["choices"]] == ["", ""]
    assert body["usage"]["prompt_tokens"] == 5
    assert edge.service.submitted == []
