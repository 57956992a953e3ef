"""POST /v1/completions, streaming and not."""

import pytest

from kvalet.core.plan import FinishReason
from tests.server.edge import Edge
from tests.server.fakes import BOS, says

PATH = "/v1/completions"


def test_a_whole_answer(edge: Edge) -> None:
    body = edge.answer(PATH, {"prompt": "once", "max_tokens": 3})
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {"index": 0, "text": "hel", "logprobs": None, "finish_reason": "length"}
    ]
    assert body["usage"]["prompt_tokens"] == 5
    assert edge.service.submitted[0].prompt == (BOS, *b"once")


def test_a_stream(edge: Edge) -> None:
    *chunks, done = edge.stream(PATH, {"prompt": "once"})
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["timings"]["prompt_n"] == 4


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(BOS, 97, 98)]),
        ([97, 98], [(97, 98)]),
        (["ab", "c"], [(BOS, 97, 98), (BOS, 99)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
        ([97, "bc", 100], [(97, 98, 99, 100)]),
        (["ab", [99, "d"]], [(BOS, 97, 98), (99, 100)]),
        ("<s>ab", [(BOS, 97, 98)]),
        ("", [(BOS,)]),
        ([""], [(BOS,)]),
    ],
)
def test_shapes_of_a_prompt(edge: Edge, prompt: object, expected: list[tuple[int, ...]]) -> None:
    body = edge.answer(PATH, {"prompt": prompt})
    assert [generation.prompt for generation in edge.service.submitted] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert body["usage"]["prompt_tokens"] == sum(len(prompt) for prompt in expected)


def test_several_prompts_are_sequences_of_their_own(edge: Edge) -> None:
    edge.answer(PATH, {"prompt": ["a", "b"], "seed": 3})
    first, second = edge.service.submitted
    assert (first.index, second.index) == (0, 1)
    assert (first.sampling.prompt_index, second.sampling.prompt_index) == (0, 1)
    assert first.request_id == second.request_id
    assert first.sampling.seed == second.sampling.seed == 3


def test_several_prompts_in_one_stream_keep_apart(edge: Edge) -> None:
    body = {"prompt": ["a", "b"], "stream_options": {"include_usage": True}}
    *chunks, usage, done = edge.stream(PATH, body)
    assert done == "[DONE]"
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == "hello"
        assert own[-1]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_asked_for_none_computed(edge: Edge, stream: bool) -> None:
    body = {"prompt": "once", "max_tokens": 0}
    if stream:
        (last, _) = edge.stream(PATH, body)
        choice = last["choices"][0]
    else:
        answer = edge.answer(PATH, body)
        assert answer["usage"]["prompt_tokens"] == 5
        assert answer["usage"]["completion_tokens"] == 0
        choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert edge.service.submitted == []


def test_nothing_to_start_from_is_an_empty_answer() -> None:
    edge = Edge(add_bos=False)
    assert edge.answer(PATH, {"prompt": ""})["choices"][0]["text"] == ""
    assert edge.service.submitted == []
    edge.close()


@pytest.mark.parametrize("limit", [None, -1])
def test_no_limit_means_the_context(edge: Edge, limit: int | None) -> None:
    edge.answer(PATH, {"prompt": "x", "max_tokens": limit})
    assert edge.service.submitted[0].max_new_tokens is None


def test_logprobs_in_openais_lists_and_llamacpps_form(edge: Edge) -> None:
    edge.service.script = says("hé!")
    logprobs = edge.answer(PATH, {"prompt": "x", "logprobs": 1})["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["top_logprobs"][0] == {"h": -0.5}
    assert logprobs["text_offset"] == [0, 1, 2, 2]
    assert [entry["id"] for entry in logprobs["content"]] == [0x68, 0xC3, 0xA9, 0x21]


def test_offsets_go_on_from_chunk_to_chunk(edge: Edge) -> None:
    chunks = edge.stream(PATH, {"prompt": "x", "logprobs": 0})
    offsets = [
        offset
        for chunk in chunks[:-1]
        for offset in (chunk["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]
    ]
    assert offsets == [0, 1, 2, 3, 4]


def test_sampling_options_arrive(edge: Edge) -> None:
    options = {
        "temperature": 0,
        "top_k": -1,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repeat_penalty": 1.1,
        "repeat_last_n": -1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "seed": 11,
    }
    body = {"prompt": "x", "stop": "STOP", "ignore_eos": True, "cache_prompt": False}
    edge.answer(PATH, {**body, **options, "id_slot": 1, "priority": 4})
    generation = edge.service.submitted[0]
    for name, value in {**options, "top_k": 0}.items():
        assert getattr(generation.sampling, name) == value
    assert generation.stop == ("STOP",)
    assert generation.ignore_eos
    assert not generation.cache_prompt
    assert (generation.id_slot, generation.priority) == (1, 4)


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ({"97": 2, "b": -1.5}, ((97, 2.0), (98, -1.5))),
        ([[97, 1], ["ab", 1]], ((97, 2.0), (98, 1.0))),
        ([[97, False]], ((97, float("-inf")),)),
        ([], ()),
    ],
)
def test_logit_bias_has_two_forms(
    edge: Edge, bias: object, expected: tuple[tuple[int, float], ...]
) -> None:
    edge.answer(PATH, {"prompt": "x", "logit_bias": bias})
    assert edge.service.submitted[0].sampling.logit_bias == expected


def test_a_stop_string_is_stop(edge: Edge) -> None:
    edge.service.script = says("some", FinishReason.STOP_STRING, "word")
    choice = edge.answer(PATH, {"prompt": "x", "stop": ["word"]})["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("some", "stop")
