"""API keys: which clients may use the endpoints that are not public, as in llama.cpp's server."""

from collections.abc import Sequence
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from kvalet.server.errors import Tell

PUBLIC = frozenset({"/", "/health", "/v1/health", "/models", "/v1/models"})


class KeyCheck:
    """ASGI middleware. Answers 401 unless the request carries one of `keys`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], tell: Tell) -> None:
        self._app = app
        self._tell = tell
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC or self._allows(Headers(scope=scope)):
            await self._app(scope, receive, send)
        else:
            refused = self._tell(scope, HTTPException(401, "Invalid API Key"))
            await refused(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        given = headers.get("authorization") or headers.get("x-api-key") or ""
        key = given.removeprefix("Bearer ").encode("latin-1")  # the bytes that were sent
        return any(compare_digest(key, known) for known in self._keys)
