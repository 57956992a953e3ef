"""The endpoints of an operator: health, props, slots, metrics, models; parking by hand."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

import orjson
from fastapi import APIRouter, Query, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException

from kvalet.errors import NotFound, Overloaded, RequestError
from kvalet.runtime.messages import Snapshot
from kvalet.server.body import read_body
from kvalet.server.desk import Desk
from kvalet.server.metrics import render_metrics
from kvalet.server.views import models, props, slot_view
from kvalet.server.wire.llamacpp import SlotRequest

T = TypeVar("T")

ANSWER_TIMEOUT_S = 10.0  # a step boundary is at most one step away
ACTIONS = ("park", "resume")
LLAMACPP_ACTIONS = ("save", "restore", "erase")


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

    @routes.post("/slots/{id_slot}")
    async def control_slot(id_slot: str, request: Request, action: str = Query("")) -> Response:
        service = desk.model.service
        slot = _slot_number(id_slot)
        _check_action(action)
        asked = SlotRequest.parse(await read_body(request, desk.settings.max_body_bytes) or b"{}")
        if action == "park":
            timeout_s = asked.timeout or desk.settings.park_timeout_s
            seen = await _answer(service.park(slot, timeout_s, asked.id))
        else:
            seen = await _answer(service.resume(slot, asked.id))
        return _json(slot_view(seen, service.n_ctx))

    @routes.get("/metrics")
    async def show_metrics() -> Response:
        text = render_metrics(await _snapshot(desk))
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes


async def _snapshot(desk: Desk) -> Snapshot:
    return await _answer(desk.model.service.snapshot())


async def _answer(future: Future[T]) -> T:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_TIMEOUT_S)
    except TimeoutError:
        raise Overloaded("the engine is busy") from None


def _slot_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NotFound(f"there is no slot {text[:40]}", "id_slot")
    return int(text)


def _check_action(action: str) -> None:
    if action in LLAMACPP_ACTIONS:
        raise HTTPException(501, f"the slot action '{action}' is not supported")
    if action not in ACTIONS:
        raise RequestError(f"'action' is park or resume, not '{action[:40]}'", "action")


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
