"""A conversation as one text: the file's chat template, rendered as Hugging Face renders it.

A template is a program by a stranger: it runs in jinja2's sandbox and sees only what is passed in.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, Self

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from typing_extensions import override

from kvalet.errors import ModelFileError, RequestError
from kvalet.model.gguf import GGUFFile
from kvalet.model.vocabulary import special_text

TEMPLATE_KEY: Final = "tokenizer.chat_template"

# What models without a template of their own are most often trained on (ChatML).
FALLBACK: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ChatTemplate:
    """`source` is the template's text; `is_fallback` says that the file has none of its own."""

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", is_fallback: bool = False
    ) -> None:
        """Raises jinja2's TemplateSyntaxError."""
        self.source = source
        self.is_fallback = is_fallback
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = _environment().from_string(source)

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Raises ModelFileError for a template that is not jinja2."""
        source = file.text(TEMPLATE_KEY, "")
        try:
            return cls(
                source or FALLBACK,
                bos_token=special_text(file, "bos"),
                eos_token=special_text(file, "eos"),
                is_fallback=not source,
            )
        except TemplateSyntaxError as error:
            raise ModelFileError(
                f"{file.path}: the chat template is broken in line {error.lineno}: {error.message}"
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        """The conversation as text, ready for `encode(..., parse_special=True)`. `kwargs` are more
        variables for the template. Raises RequestError for what the template refuses."""
        given = {"documents": None, **self._tokens, **kwargs, "messages": messages, "tools": tools}
        try:
            return self._template.render(given, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # a template may raise anything, and it is about these messages
            raise RequestError(f"'messages': {_reason(error)}", "messages") from error


def _reason(error: Exception) -> str:
    if isinstance(error, TemplateError) and error.message:
        return f"the chat template says: {error.message}"
    return f"the chat template fails: {str(error) or type(error).__name__}"


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it only brackets it."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    @override
    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,  # noqa: ANN401  # json's own parameter, passed through
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
