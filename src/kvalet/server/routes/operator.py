"""What an operator looks at: health, props, slots, metrics, models."""

import orjson
from fastapi import APIRouter, Query, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from kvalet.errors import Overloaded
from kvalet.runtime.messages import Snapshot
from kvalet.server.desk import Desk
from kvalet.server.metrics import render_metrics
from kvalet.server.views import models, props, slot_view
from kvalet.server.waiting import answered


def router(desk: Desk) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    @routes.get("/v1/health")
    async def health() -> Response:
        desk.serving  # noqa: B018  # raises what is wrong
        return _json({"status": "ok"})

    @routes.get("/models")
    @routes.get("/v1/models")
    async def list_models() -> Response:
        return _json(models(desk.model, desk.opened_at))

    @routes.get("/props")
    async def show_props() -> Response:
        return _json(props(desk.model, desk.settings.max_new_tokens))

    @routes.get("/slots")
    async def show_slots(fail_on_no_slot: str = Query("")) -> Response:
        snapshot = await _snapshot(desk)
        if fail_on_no_slot and all(slot.is_processing for slot in snapshot.slots):
            raise Overloaded("no slot available")
        n_ctx = desk.model.service.n_ctx
        return _json([slot_view(slot, n_ctx) for slot in snapshot.slots])

    @routes.get("/metrics")
    async def show_metrics() -> Response:
        text = render_metrics(await _snapshot(desk))
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes


async def _snapshot(desk: Desk) -> Snapshot:
    return await desk.attend(answered(desk.model.service.snapshot()))


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
