"""The HTTP edge for tests: in process for bodies, on a real socket for connections."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import httpx
import uvicorn

from kvalet.server.app import create_app
from kvalet.server.listen import listen, url_of
from kvalet.server.settings import ServerSettings
from kvalet.server.state import AppState
from tests.server.fakes import FakeService, Script, make_model

TIMEOUT_S = 30.0


class Edge:
    """An app over a fake service; every call runs it in process."""

    def __init__(
        self,
        service: FakeService | None = None,
        settings: ServerSettings | None = None,
        template: bool = True,
        add_bos: bool = True,
        props: Mapping[str, object] | None = None,
    ) -> None:
        self.service = service or FakeService()
        self.state = AppState(settings or ServerSettings())
        self.state.open(make_model(self.service, template, add_bos, props or {}))
        self.app = create_app(self.state)

    def request(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", verify=False
            ) as client:
                return await client.request(method, path, content=content, headers=headers)

        return asyncio.run(asyncio.wait_for(call(), TIMEOUT_S))

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self.request("GET", path, headers=headers)

    def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return self.request("POST", path, json.dumps(body).encode(), headers)

    def answer(self, path: str, body: object) -> Any:  # noqa: ANN401  # any JSON
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def error(self, path: str, body: object, status: int = 400) -> dict[str, Any]:
        response = self.post(path, body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def stream(self, path: str, body: Mapping[str, object]) -> list[Any]:
        """The data of a stream's events, `[DONE]` and comments as text."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return parse_events(response.text)

    def close(self) -> None:
        self.service.close()
        self.state.shut()


def parse_events(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    return [_parse(event) for event in text[:-2].split("\n\n")]


def _parse(event: str) -> Any:  # noqa: ANN401  # any JSON
    if not event.startswith("data: "):
        return event
    data = event.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


class LiveEdge(Edge):
    """The same on a real socket, with its own thread for the event loop."""

    url: str

    def says(self, script: Script) -> None:
        self.service.script = script
        self.service.submitted.clear()
        self.service.cancelled.clear()


@contextlib.contextmanager
def live_edge(settings: ServerSettings | None = None) -> Iterator[LiveEdge]:
    edge = LiveEdge(settings=settings)
    try:
        with on_socket(edge) as edge.url:
            yield edge
    finally:
        edge.close()


@contextlib.contextmanager
def on_socket(edge: Edge) -> Iterator[str]:
    """Serve the app of `edge`; yields its URL."""
    config = uvicorn.Config(
        edge.app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield url_of(sock)
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_S)


def wait_until(is_so: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


class RawStream:
    """A response as it comes over the socket: its head, and its body without the chunk lengths."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = b""
        self.head = b""

    def read_until(self, mark: bytes) -> bytes:
        """The body so far, once it holds `mark`."""
        while mark not in (body := self._body()[0]):
            self._receive()
        return body

    def read_to_end(self) -> bytes:
        """The whole of a chunked body."""
        while not self._body()[1]:
            self._receive()
        return self._body()[0]

    def _receive(self) -> None:
        received = self._sock.recv(65536)
        assert received, self._raw
        self._raw += received
        if not self.head and b"\r\n\r\n" in self._raw:
            self.head, _, self._raw = self._raw.partition(b"\r\n\r\n")

    def _body(self) -> tuple[bytes, bool]:
        """What has come of it, and whether that is all."""
        if not self.head:
            return b"", False
        if b"chunked" not in self.head:
            return self._raw, False
        body, rest = b"", self._raw
        while b"\r\n" in rest:
            length, _, rest = rest.partition(b"\r\n")
            size = int(length, 16)
            if size == 0:
                return body, True
            body, rest = body + rest[:size], rest[size + 2 :]
        return body, False


@contextlib.contextmanager
def raw_request(url: str, path: str, body: Mapping[str, object]) -> Iterator[RawStream]:
    host, port = url.removeprefix("http://").split(":")
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(payload)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(head.encode() + payload)
        yield RawStream(sock)
