"""An error as clients may know it, and the shape that most dialects give it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """In no dialect."""

    status: int
    kind: str  # llama.cpp's and OpenAI's `type`
    message: str
    param: str | None = None  # the field of the request that is wrong
    details: Mapping[str, object] = field(default_factory=dict[str, object])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


ErrorShape: TypeAlias = Callable[[ErrorReport], object]  # the JSON that says it


def error_body(report: ErrorReport) -> dict[str, object]:
    """llama.cpp's shape and types, with OpenAI's `param`:

    {"error": {"code": 400, "message": "...", "type": "invalid_request_error", "param": "top_p"}}
    """
    error = {
        "code": report.status,
        "message": report.message,
        "type": report.kind,
        "param": report.param,
    }
    return {"error": {**error, **report.details}}
