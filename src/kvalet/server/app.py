"""The ASGI application: dialects, keys, pages, errors. It can answer before there is a model."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute

from kvalet import __version__
from kvalet.errors import KvaletError
from kvalet.server.browsers import PageCheck, Pages
from kvalet.server.dialects.chat import Chat
from kvalet.server.dialects.completions import Completions
from kvalet.server.dialects.dialect import Dialect
from kvalet.server.dialects.llamacpp import LlamaCpp
from kvalet.server.errors import Tell, teller
from kvalet.server.handle import ClientGone
from kvalet.server.keys import KeyCheck
from kvalet.server.routes import generation, operator, slots, text
from kvalet.server.state import AppState

DIALECTS: Final[tuple[Dialect, ...]] = (Chat(), Completions(), LlamaCpp())

CLIENT_CLOSED_REQUEST = 499  # nginx's; no client is left to read it


def create_app(state: AppState, dialects: Sequence[Dialect] = DIALECTS) -> FastAPI:
    tell = teller({path: dialect.error for dialect in dialects for path in dialect.paths})
    app = FastAPI(
        title="kvalet",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        routes=_routes(state, dialects, tell),
    )
    if state.settings.api_keys:
        app.add_middleware(KeyCheck, keys=state.settings.api_keys, tell=tell)
    pages = Pages(state.settings.host, state.settings.cors_origins)
    app.add_middleware(PageCheck, pages=pages, tell=tell)
    _add_error_handlers(app, tell)
    return app


def _routes(state: AppState, dialects: Sequence[Dialect], tell: Tell) -> list[BaseRoute]:
    speaking = [generation.routes(state, dialect, tell) for dialect in dialects]
    others = [part.routes(state) for part in (text, operator, slots)]
    return [*chain(*speaking, *others)]


def _add_error_handlers(app: FastAPI, tell: Tell) -> None:
    async def failed(request: Request, error: Exception) -> Response:
        return tell(request.scope, error)

    async def client_left(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    for known in (KvaletError, HTTPException, Exception):
        app.add_exception_handler(known, failed)
    for gone in (ClientGone, ClientDisconnect):
        app.add_exception_handler(gone, client_left)
