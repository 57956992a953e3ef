"""POST /completion, llama.cpp's dialect, and its text endpoints."""

import pytest

from kvalet.core.plan import FinishReason
from tests.server.edge import Edge
from tests.server.fakes import BOS, says

PATH = "/completion"


def test_a_whole_answer_has_llamacpps_fields(edge: Edge) -> None:
    edge.service.script = says("two\nlines", FinishReason.STOP_STRING, "word")
    body = edge.answer(PATH, {"prompt": "once", "stop": ["word"], "seed": 9})
    assert body["content"] == "two\nlines"
    assert body["stop"] is True
    assert (body["stop_type"], body["stopping_word"]) == ("word", "word")
    assert (body["tokens_evaluated"], body["tokens_predicted"]) == (5, 9)
    assert body["tokens_cached"] == 1
    assert body["prompt"] == "<s>once"
    assert body["has_new_line"] is True
    assert body["truncated"] is False
    assert body["model"] == "tiny"
    assert body["tokens"] == []
    assert body["timings"]["cache_n"] == 1
    settings = body["generation_settings"]
    assert (settings["seed"], settings["n_predict"], settings["stop"]) == (9, -1, ["word"])


@pytest.mark.parametrize(
    ("reason", "stop_type", "truncated"),
    [
        (FinishReason.EOS, "eos", False),
        (FinishReason.LENGTH, "limit", False),
        (FinishReason.CONTEXT, "limit", True),
    ],
)
def test_why_it_ended(edge: Edge, reason: FinishReason, stop_type: str, truncated: bool) -> None:
    edge.service.script = says("x", reason)
    body = edge.answer("/completions", {"prompt": "once"})
    assert (body["stop_type"], body["truncated"]) == (stop_type, truncated)


def test_a_stream_ends_with_the_whole_story_and_no_done(edge: Edge) -> None:
    *chunks, last = edge.stream(PATH, {"prompt": "once"})
    assert "".join(chunk["content"] for chunk in chunks) == "hello"
    assert [chunk["tokens"] for chunk in chunks] == [[byte] for byte in b"hello"]
    assert [chunk["tokens_predicted"] for chunk in chunks] == [1, 2, 3, 4, 5]
    assert not any(chunk["stop"] for chunk in chunks)
    assert last["stop"] is True
    assert last["content"] == ""
    assert last["generation_settings"]["stream"] is True


def test_tokens_and_probabilities_when_asked_for(edge: Edge) -> None:
    body = edge.answer(PATH, {"prompt": "x", "return_tokens": True, "n_probs": 2})
    assert body["tokens"] == list(b"hello")
    first = body["completion_probabilities"][0]
    assert (first["id"], first["token"], first["bytes"]) == (104, "h", [104])
    assert len(first["top_logprobs"]) == 2


def test_probabilities_in_a_stream(edge: Edge) -> None:
    *chunks, last = edge.stream(PATH, {"prompt": "x", "n_probs": 1})
    assert [len(chunk["completion_probabilities"]) for chunk in chunks] == [1] * 5
    assert "completion_probabilities" not in last


def test_several_prompts_are_a_list(edge: Edge) -> None:
    bodies = edge.answer(PATH, {"prompt": ["a", "b"], "n_predict": 1})
    assert [(body["index"], body["content"]) for body in bodies] == [(0, "h"), (1, "h")]


def test_a_ban_can_be_shown(edge: Edge) -> None:
    body = edge.answer(PATH, {"prompt": "x", "logit_bias": [[5, False]]})
    assert body["generation_settings"]["logit_bias"] == [{"token": 5, "bias": -1e9}]


def test_tokenize(edge: Edge) -> None:
    assert edge.answer("/tokenize", {"content": "<s>é"}) == {"tokens": [BOS, 0xC3, 0xA9]}
    plain = edge.answer("/tokenize", {"content": "<s>", "parse_special": False})
    assert plain == {"tokens": list(b"<s>")}
    assert edge.answer("/tokenize", {"content": "a", "add_special": True}) == {"tokens": [BOS, 97]}
    assert edge.answer("/tokenize", {"content": ["a", 98]}) == {"tokens": [97, 98]}


def test_pieces_are_text_or_bytes(edge: Edge) -> None:
    body = edge.answer("/tokenize", {"content": "<s>aé", "with_pieces": True})
    assert [token["piece"] for token in body["tokens"]] == ["<s>", "a", [0xC3], [0xA9]]


def test_detokenize(edge: Edge) -> None:
    assert edge.answer("/detokenize", {"tokens": [BOS, 0xC3, 0xA9]}) == {"content": "<s>é"}


def test_apply_template_takes_a_chat_request(edge: Edge) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.3, "tools": None}
    assert edge.answer("/apply-template", body) == {"prompt": "<s>[user]hi[assistant]"}
