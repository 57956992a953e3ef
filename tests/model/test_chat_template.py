"""Chat templates: rendered as Hugging Face renders them, and harmless whatever they hold."""

from datetime import datetime
from pathlib import Path

import pytest
from tests.model.builders import Value, write_bpe

from kvalet.errors import ModelFileError, RequestError
from kvalet.model.chat_template import FALLBACK, ChatTemplate
from kvalet.model.gguf import GGUFFile

HI = [{"role": "user", "content": "hi"}]


def render(source: str) -> str:
    return ChatTemplate(source).render(HI)


def load(path: Path) -> ChatTemplate:
    with GGUFFile.open(path) as file:
        return ChatTemplate.from_gguf(file)


def test_the_files_template_sees_messages_and_tokens(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    metadata: dict[str, Value] = {
        "tokenizer.chat_template": source,
        "tokenizer.ggml.bos_token_id": 1,
    }
    template = load(write_bpe(tmp_path / "v.gguf", metadata=metadata))
    assert (template.source, template.is_fallback) == (source, False)
    assert template.render(HI) == "<|go|>user: hi<|end|>assistant:"
    assert template.render(HI, add_generation_prompt=False) == "<|go|>user: hi<|end|>"


def test_a_file_without_a_template_gets_chatml_and_says_so(tmp_path: Path) -> None:
    template = load(write_bpe(tmp_path / "v.gguf"))
    assert (template.source, template.is_fallback) == (FALLBACK, True)
    assert template.render(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_is_not_jinja_is_refused_with_its_line(tmp_path: Path) -> None:
    metadata: dict[str, Value] = {"tokenizer.chat_template": "{{ messages }}\n{% endfor %}"}
    path = write_bpe(tmp_path / "v.gguf", metadata=metadata)
    with pytest.raises(ModelFileError, match=r"v\.gguf: the chat template is broken in line 2: "):
        load(path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),  # trim_blocks, lstrip_blocks
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{{ {'b': '<\u00e9>', 'a': 1} | tojson }}", '{"b": "<\u00e9>", "a": 1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% generation %}said{% endgeneration %}!", "said!"),
        ("{{ tools is none }} {{ documents is none }} {{ unknown }}", "True True "),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ '<b>' }}", "<b>"),  # not HTML
    ],
)
def test_it_is_hugging_faces_dialect(source: str, expected: str) -> None:
    assert render(source) == expected


def test_more_variables_may_be_given_but_not_other_messages() -> None:
    template = ChatTemplate("{{ mood }} {{ tools | length }} {{ messages[0].content }}")
    assert template.render(HI, tools=[{}], mood="glad", messages="forged") == "glad 1 hi"


def test_time_is_local() -> None:
    assert render("{{ strftime_now('%Y') }}") == datetime.now().astimezone().strftime("%Y")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "says: roles must alternate"),
        ("{{ messages[0].name.first }}", "has no attribute 'name'"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(role='system') }}", "unsafe"),
    ],
)
def test_what_a_template_refuses_is_the_messages_fault(source: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        render(source)
    assert caught.value.field == "messages"
    assert str(caught.value).startswith("'messages': the chat template ")
