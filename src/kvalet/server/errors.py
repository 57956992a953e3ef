"""From whatever went wrong to what the client is told, in the shape of its dialect.

The error has the status; messages are never parsed. What was not raised on purpose is a 500 that
says nothing of our insides.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from kvalet.errors import ContextExceeded, KvaletError, Overloaded, RequestError
from kvalet.server.dialects.error import ErrorReport, ErrorShape, error_body

_HTTP_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
}


Tell: TypeAlias = Callable[[Scope, Exception], Response]  # the answer to a request that failed


def report_of(error: Exception) -> ErrorReport:
    match error:
        case ContextExceeded():
            details = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
            return ErrorReport(error.status, error.kind, str(error), error.field, details)
        case RequestError():
            return ErrorReport(error.status, error.kind, str(error), error.field)
        case Overloaded():
            headers = {"Retry-After": str(error.retry_after_s)}
            return ErrorReport(error.status, error.kind, str(error), headers=headers)
        case KvaletError():
            return ErrorReport(error.status, error.kind, str(error))
        case HTTPException():
            kind = _HTTP_KINDS.get(error.status_code, "invalid_request_error")
            headers = dict(error.headers or {})
            return ErrorReport(error.status_code, kind, error.detail, headers=headers)
        case _:
            message = "internal error; the server's log has the details"
            return ErrorReport(500, "server_error", message)


def error_response(report: ErrorReport, shape: ErrorShape = error_body) -> Response:
    body = orjson.dumps(shape(report))
    return Response(body, report.status, report.headers, media_type="application/json")


def teller(shapes: Mapping[str, ErrorShape]) -> Tell:
    """Tells of errors in the shape that belongs to a request's path, elsewhere in llama.cpp's."""

    def tell(scope: Scope, error: Exception) -> Response:
        return error_response(report_of(error), shapes.get(scope["path"], error_body))

    return tell
