"""What an operator does with a slot: POST /slots/{id}?action=... (behaviour P14, C3).

A client names a state file, never a path: whatever it says stays inside `--slot-save-path`.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import orjson
from pydantic import AfterValidator, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvalet.engine.host.statefile import read_header
from kvalet.errors import NotFound, RequestError, StateFileError
from kvalet.server.body import read_body
from kvalet.server.dialects.body import Body
from kvalet.server.model import ServedModel
from kvalet.server.routes.filename import check_file_name
from kvalet.server.state import AppState
from kvalet.server.views import slot_view
from kvalet.server.waiting import answered

COPY_TIMEOUT_S = 600.0  # gigabytes to or from a slow disk

Timeout = Annotated[float, Field(gt=0, le=1e9)]  # seconds
FileName = Annotated[str, AfterValidator(check_file_name)]


class SlotBody(Body):
    """POST /slots/{id_slot}?action=erase; the body may be empty."""

    id: str | None = None  # of the response whose slot it is thought to be


class ParkBody(SlotBody):
    """action=park and action=resume; the body may be empty."""

    timeout: Timeout | None = None


class SaveBody(SlotBody):
    filename: FileName


class RestoreBody(Body):
    filename: FileName
    timeout: Timeout | None = None  # as of a park


Action: TypeAlias = Callable[[AppState, int, bytes], Awaitable[object]]


def routes(state: AppState) -> list[Route]:
    async def control_slot(request: Request) -> Response:
        state.model  # noqa: B018  # raises what is wrong
        slot = _slot_number(request.path_params["id_slot"])
        act = _found(request.query_params.get("action", ""))
        body = await read_body(request, state.settings.max_body_bytes) or b"{}"
        answer = orjson.dumps(await state.attend(act(state, slot, body)))
        return Response(answer, media_type="application/json")

    return [Route("/slots/{id_slot}", control_slot, methods=["POST"])]


async def _park(state: AppState, slot: int, body: bytes) -> object:
    asked, service = ParkBody.parse(body), state.serving.service
    timeout_s = asked.timeout or state.settings.park_timeout_s
    seen = await answered(service.park(slot, timeout_s, asked.id))
    return slot_view(seen, service.n_ctx)


async def _resume(state: AppState, slot: int, body: bytes) -> object:
    """In a drain too: a parked chat may come to its end then, as running ones do."""
    asked, service = ParkBody.parse(body), state.model.service
    return slot_view(await answered(service.resume(slot, asked.id)), service.n_ctx)


async def _save(state: AppState, slot: int, body: bytes) -> object:
    folder, asked, service = _folder(state), SaveBody.parse(body), state.serving.service
    path = await state.work_on_file(lambda: _place(folder, asked.filename))
    saving = service.save(slot, str(path), asked.id)
    done = await answered(saving, COPY_TIMEOUT_S)
    return {
        "id_slot": done.slot,
        "filename": asked.filename,
        "n_saved": done.num_tokens,
        "n_written": done.num_bytes,
        "timings": {"save_ms": done.seconds * 1e3},
    }


async def _restore(state: AppState, slot: int, body: bytes) -> object:
    folder, asked, model = _folder(state), RestoreBody.parse(body), state.serving
    path, tokens = await state.work_on_file(lambda: _saved(folder, asked.filename, model))
    timeout_s = asked.timeout or state.settings.park_timeout_s
    restoring = model.service.restore(slot, str(path), tokens, timeout_s)
    done = await answered(restoring, COPY_TIMEOUT_S)
    return {
        "id_slot": done.slot,
        "filename": asked.filename,
        "n_restored": done.num_tokens,
        "n_read": done.num_bytes,
        "timings": {"restore_ms": done.seconds * 1e3},
    }


async def _erase(state: AppState, slot: int, body: bytes) -> object:
    asked, service = SlotBody.parse(body), state.serving.service
    done = await answered(service.erase(slot, asked.id))
    return {"id_slot": done.slot, "n_erased": done.num_tokens}


_ACTIONS: Mapping[str, Action] = {
    "park": _park,
    "resume": _resume,
    "save": _save,
    "restore": _restore,
    "erase": _erase,
}


def _found(action: str) -> Action:
    if action not in _ACTIONS:
        *names, last = _ACTIONS
        expected = f"{', '.join(names)} or {last}"
        raise RequestError(f"'action' is {expected}, not '{action[:40]}'", "action")
    return _ACTIONS[action]


def _slot_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NotFound(f"there is no slot {text[:40]}", "id_slot")
    return int(text)


def _folder(state: AppState) -> Path:
    if state.settings.slot_save_path is None:
        raise HTTPException(501, "slots are saved and restored with --slot-save-path")
    return state.settings.slot_save_path


def _place(folder: Path, name: str) -> Path:
    """Where the file called `name` is or will be, links followed. Raises RequestError for one that
    is elsewhere, or no file."""
    path = os.path.realpath(folder / name)
    if not Path(path).is_relative_to(os.path.realpath(folder)):
        raise RequestError(f"'filename': {name!r} leads out of its folder", "filename")
    if os.path.exists(path) and not os.path.isfile(path):
        raise RequestError(f"'filename': {name!r} is not a file", "filename")
    return Path(path)


def _saved(folder: Path, name: str, model: ServedModel) -> tuple[Path, tuple[int, ...]]:
    """A state file of this engine's and its tokens. Raises NotFound, StateFileError or
    EngineError."""
    service = model.service
    path = _place(folder, name)
    if not path.exists():
        raise NotFound(f"there is no state file {name!r}", "filename")
    header = read_header(path, service.fingerprint, service.page_bytes, service.n_ctx)
    if not header.tokens:
        raise StateFileError(f"state file {name} does not say which tokens it holds")
    if max(header.tokens) >= model.tokenizer.num_vocab:
        beyond = f"token {max(header.tokens)}, which the model does not have"
        raise StateFileError(f"state file {name} holds {beyond}")
    return path, header.tokens
