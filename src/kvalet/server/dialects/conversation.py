"""A conversation as clients send it, and what rendering it takes."""

from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
)

from kvalet.server.dialects.body import Body

_TOOL_ROLES = ("tool", "function")


def _join_parts(content: object) -> object:
    """Text parts become one text, a line each, as llama.cpp's server joins them."""
    if not isinstance(content, list):
        return content
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise ValueError("a content part is an object with a 'type'")
    if kind != "text":
        raise ValueError(f"content parts of type '{kind[:40]}' are not supported, only 'text'")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError("a content part of type 'text' has a 'text'")
    return text


def _known_role(role: object) -> object:
    if role in _TOOL_ROLES:
        raise ValueError(f"messages with role '{role}' are not supported")
    return role


class Message(Body):
    role: Annotated[str, BeforeValidator(_known_role), Field(min_length=1)]
    content: Annotated[str, BeforeValidator(_join_parts)]
    name: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, str]:
        fields: dict[str, str] = self.model_dump(exclude_none=True)
        return fields


class TemplateBody(Body):
    """What rendering a conversation takes."""

    messages: Annotated[list[Message], Field(min_length=1)]
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)  # a template's own business

    @field_validator("chat_template_kwargs")
    @classmethod
    def _keep_our_names(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        for name in ("messages", "add_generation_prompt", "tools"):
            if name in kwargs:
                raise ValueError(f"must not hold '{name}'")
        return kwargs


class ApplyTemplateBody(TemplateBody):
    """/apply-template: a chat request's other fields do not change the prompt."""

    model_config = ConfigDict(extra="ignore")
