"""The official client against the real server and the default model."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from kvalet.bench.process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.fixture
def client(smollm2: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", timeout=60) as made:
        yield made


def test_a_chat_is_answered_sensibly(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=40,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=40,
    )
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_the_text_of_a_plain_completion_is_english(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="default", prompt="The capital of France is", temperature=0, max_tokens=12
    )
    assert answer.choices[0].text.startswith(" Paris")


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert len(list(client.models.list())) == 1


def test_a_prompt_that_cannot_fit_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="default", prompt="word " * 2000)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["type"] == "exceed_context_size_error"
    assert refused.value.body["n_ctx"] == 768


def test_a_wrong_key_is_refused(tiny_model: Path) -> None:
    with ServerProcess("-m", str(tiny_model), "--api-key", "right") as server:
        url = f"{server.url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="wrong", timeout=30) as wrong,
            pytest.raises(openai.AuthenticationError),
        ):
            wrong.completions.create(model="default", prompt="a", max_tokens=1)
        with openai.OpenAI(base_url=url, api_key="right", timeout=30) as right:
            assert right.completions.create(model="default", prompt="a", max_tokens=1).choices
