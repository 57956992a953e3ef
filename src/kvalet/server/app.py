"""The ASGI application: routes, keys, pages, errors. It can answer before there is a model."""

import logging

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kvalet import __version__
from kvalet.errors import KvaletError
from kvalet.server.browsers import PageCheck, Pages
from kvalet.server.errors import describe
from kvalet.server.handle import ClientGone
from kvalet.server.keys import KeyCheck
from kvalet.server.routes import generation, operator, slots, text
from kvalet.server.state import AppState

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody is left to read it


def create_app(state: AppState) -> FastAPI:
    app = FastAPI(
        title="kvalet",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        routes=[
            route for part in (generation, text, operator, slots) for route in part.routes(state)
        ],
    )
    if state.settings.api_keys:
        app.add_middleware(KeyCheck, keys=state.settings.api_keys)
    app.add_middleware(PageCheck, pages=Pages(state.settings.host, state.settings.cors_origins))
    for known in (KvaletError, HTTPException):
        app.add_exception_handler(known, _tell)
    for gone in (ClientGone, ClientDisconnect):
        app.add_exception_handler(gone, _nobody_there)
    app.add_exception_handler(Exception, _tell)
    return app


async def _tell(request: Request, error: Exception) -> Response:
    return describe(error).response()


async def _nobody_there(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
