"""An OpenAI-compatible server that is not kvalet: standard fields only, no notices, no metrics.

It says one word a token, which depend on the chat's words and, if it is told to be `inexact`, on
how many chats are under way.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse

STANDARD = {"model", "messages", "max_tokens", "temperature", "seed", "stream"}
TOKEN_S = 0.002


@dataclass
class Foreign:
    takes: frozenset[str] = frozenset({"stream_options"})  # beside STANDARD
    is_inexact: bool = False
    has_no_room: bool = False  # refuses every chat of more than one token
    stops_after: int = 1_000_000  # tokens, whatever it is asked
    is_page: bool = False  # says nothing but an HTML page
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refused: set[str] = field(default_factory=set[str])
    num_running: int = 0
    url: str = ""

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "foreign-1", "object": "model"}]}

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            if self.is_page:
                return HTMLResponse("<p>Welcome</p>")
            body = await request.json()
            if unknown := set(body) - STANDARD - self.takes:
                self.refused |= unknown
                raise HTTPException(400, f"unknown fields: {sorted(unknown)}")
            if body["model"] != "foreign-1":
                raise HTTPException(404, "no such model")
            self.bodies.append(body)
            if self.has_no_room and body["max_tokens"] > 1:
                raise HTTPException(500, "no room")
            return StreamingResponse(self._events(body), media_type="text/event-stream")

        return app

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """As sse-starlette writes them, with carriage returns."""
        self.num_running += 1
        told = sum(map(ord, body["messages"][-1]["content"]))
        num_tokens = min(body["max_tokens"], self.stops_after)
        for token in range(num_tokens):
            await asyncio.sleep(TOKEN_S)
            beside = self.num_running if self.is_inexact else 1
            yield _event({"content": f"{(told + 7 * token) % 100 + beside} "})
        self.num_running -= 1
        yield _event({}, "length" if num_tokens == body["max_tokens"] else "stop")
        if body.get("stream_options"):
            counts = {"prompt_tokens": 10, "completion_tokens": num_tokens}
            yield f"data: {json.dumps({'choices': [], 'usage': counts})}\r\n\r\n"
        yield "data: [DONE]\r\n\r\n"


def _event(delta: dict[str, str], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice], 'usage': None})}\r\n\r\n"


@contextmanager
def serving(foreign: Foreign) -> Iterator[Foreign]:
    """It answers at its `url` during the block."""
    config = uvicorn.Config(foreign.app(), port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        if not thread.is_alive():
            raise RuntimeError("the foreign server did not start")
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    foreign.url = f"http://{host}:{port}"
    yield foreign
    server.should_exit = True
    thread.join(10)
