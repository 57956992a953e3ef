"""The one table from errors to bodies: llama.cpp's shape and types, with OpenAI's `param`.

    {"error": {"code": 400, "message": "...", "type": "invalid_request_error", "param": "top_p"}}

Whoever raises gives the status; messages are never parsed. What nobody meant to raise is a 500
that says nothing of our insides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kvalet.errors import ContextExceeded, KvaletError, Overloaded, RequestError

_HTTP_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as clients see it."""

    status: int
    error: dict[str, object]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def response(self) -> Response:
        body = orjson.dumps({"error": self.error})
        return Response(body, self.status, self.headers, media_type="application/json")


def describe(error: Exception) -> ErrorReply:
    """What to tell the client about `error`."""
    match error:
        case ContextExceeded():
            extra = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
            return _reply(error.status, error.kind, str(error), error.field, extra)
        case RequestError():
            return _reply(error.status, error.kind, str(error), error.field)
        case Overloaded():
            reply = _reply(error.status, error.kind, str(error))
            return ErrorReply(reply.status, reply.error, {"Retry-After": str(error.retry_after_s)})
        case KvaletError():
            return _reply(error.status, error.kind, str(error))
        case HTTPException():
            return _from_http(error)
        case _:
            return _reply(500, "server_error", "internal error; the server's log has the details")


def _reply(
    status: int,
    kind: str,
    message: str,
    param: str | None = None,
    extra: Mapping[str, object] | None = None,
) -> ErrorReply:
    body = {"code": status, "message": message, "type": kind, "param": param, **(extra or {})}
    return ErrorReply(status, body)


def _from_http(error: HTTPException) -> ErrorReply:
    kind = _HTTP_KINDS.get(error.status_code, "invalid_request_error")
    reply = _reply(error.status_code, kind, error.detail)
    return ErrorReply(reply.status, reply.error, error.headers or {})
