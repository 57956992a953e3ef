"""The endpoints that generate: OpenAI's completions and chat, llama.cpp's completion.

One path for all: read, build the job on a worker thread, submit, answer. A request that cannot be
served gets its 4xx or 503 before any stream begins.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvalet.server.body import read_body
from kvalet.server.jobs import BuildJob, chat_job, completion_job, native_job
from kvalet.server.notices import Cadence
from kvalet.server.reply import EventStream, whole_reply
from kvalet.server.state import AppState


def routes(state: AppState) -> list[Route]:
    async def generate(request: Request, build: BuildJob) -> Response:
        model = state.serving
        body = await read_body(request, state.settings.max_body_bytes)
        job = await state.work(lambda: build(model, state.defaults, body))
        handle = state.submit(job)
        if job.stream:
            server_s = state.settings.sse_ping_interval_s
            cadence = Cadence.of(server_s, job.sse_ping_interval_s)
            return EventStream(handle, job.answer, cadence)
        return await whole_reply(handle, job.answer, request.receive)

    async def chat(request: Request) -> Response:
        return await generate(request, chat_job)

    async def completions(request: Request) -> Response:
        return await generate(request, completion_job)

    async def native(request: Request) -> Response:
        return await generate(request, native_job)

    return [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/completion", native, methods=["POST"]),
        Route("/completions", native, methods=["POST"]),
    ]
