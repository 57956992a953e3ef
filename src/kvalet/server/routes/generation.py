"""The endpoints that generate, of whatever dialect.

One path for all: read, parse on a worker thread, submit, answer. A request that cannot be served
gets its 4xx or 503 before any stream begins.
"""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvalet.server.body import read_body
from kvalet.server.dialects.dialect import Dialect
from kvalet.server.errors import Tell
from kvalet.server.notices import Cadence
from kvalet.server.reply import StreamedReply, whole_reply
from kvalet.server.state import AppState


def routes(state: AppState, dialect: Dialect, tell: Tell) -> Iterator[Route]:
    async def generate(request: Request) -> Response:
        model = state.serving
        raw = await read_body(request, state.settings.max_body_bytes)
        job = await state.work(lambda: dialect.parse(model, state.defaults, raw))
        handle = state.submit(job)
        if not job.stream:
            return await whole_reply(handle, job.answer, request.receive)
        cadence = Cadence.of(state.settings.sse_ping_interval_s, job.ping_interval_s)
        return StreamedReply(handle, job.answer, cadence, tell)

    for path in dialect.paths:
        yield Route(path, generate, methods=["POST"])
