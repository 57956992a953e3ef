"""What can be looked at: the front, health, props, slots, metrics, models."""

import orjson
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from kvalet.errors import Overloaded
from kvalet.runtime.messages import Snapshot
from kvalet.server.front import Front, prefers_html
from kvalet.server.metrics import render_metrics
from kvalet.server.state import AppState
from kvalet.server.views import models, props, slot_view
from kvalet.server.waiting import answered


def routes(state: AppState) -> list[Route]:
    async def show_front(request: Request) -> Response:
        front = Front.of(state.status, state.model_name, request.app.routes)
        is_html = prefers_html(request.headers.get("accept", ""))
        answer = HTMLResponse(front.page()) if is_html else _json(front)
        answer.headers["Vary"] = "Accept"
        return answer

    async def health(request: Request) -> Response:
        state.serving  # noqa: B018  # raises what is wrong
        return _json({"status": "ok"})

    async def list_models(request: Request) -> Response:
        return _json(models(state.model, state.opened_at))

    async def show_props(request: Request) -> Response:
        return _json(props(state.model, state.settings.max_new_tokens))

    async def show_slots(request: Request) -> Response:
        snapshot = await _snapshot(state)
        must_have_free = request.query_params.get("fail_on_no_slot")
        if must_have_free and all(slot.is_processing for slot in snapshot.slots):
            raise Overloaded("no slot available")
        n_ctx = state.model.service.n_ctx
        return _json([slot_view(slot, n_ctx) for slot in snapshot.slots])

    async def show_metrics(request: Request) -> Response:
        text = render_metrics(await _snapshot(state))
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [
        Route("/", show_front),
        Route("/health", health),
        Route("/v1/health", health),
        Route("/models", list_models),
        Route("/v1/models", list_models),
        Route("/props", show_props),
        Route("/slots", show_slots),
        Route("/metrics", show_metrics),
    ]


async def _snapshot(state: AppState) -> Snapshot:
    return await state.attend(answered(state.model.service.snapshot()))


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
