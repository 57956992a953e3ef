"""Sends one request of a soak and reads what comes back, as long as its client would."""

import asyncio
import json
import socket
import struct

import httpx
from bench.soak.outcome import Disorder, Fate, Outcome
from bench.soak.requests import Ending, Request

from kvalet.bench.chats import event_lines


async def send(http: httpx.AsyncClient, request: Request, n_ctx: int, *, endless: bool) -> Outcome:
    """To its end, whatever that is; never raises."""
    outcome = Outcome(request)
    patience_s = None if request.ending is Ending.READS_ALL else request.patience_s
    try:
        if request.ending is Ending.BREAKS:
            await _break(http.base_url.host, http.base_url.port or 80, request)
            outcome.fate = Fate.LEFT
            return outcome
        async with asyncio.timeout(patience_s):
            await (_read_stream if request.is_streamed else _read_whole)(http, outcome)
        if outcome.fate is Fate.DONE:
            outcome.check_complete(n_ctx, endless=endless)
    except TimeoutError:
        outcome.fate = Fate.LEFT
    except (Disorder, httpx.HTTPError, OSError, ValueError, KeyError) as error:
        outcome.lose(f"{type(error).__name__}: {error}")
    return outcome


async def _read_stream(http: httpx.AsyncClient, outcome: Outcome) -> None:
    request = outcome.request
    async with http.stream("POST", request.dialect.value, json=request.body) as response:
        if _is_answered(outcome, response.status_code, response.headers):
            async for line in event_lines(response):
                outcome.take_line(line)
            outcome.fate = Fate.DONE
        elif outcome.fate is Fate.LOST:
            outcome.why = (await response.aread()).decode()


async def _read_whole(http: httpx.AsyncClient, outcome: Outcome) -> None:
    request = outcome.request
    response = await http.post(request.dialect.value, json=request.body)
    if _is_answered(outcome, response.status_code, response.headers):
        outcome.take_body(response.json(), is_whole=True)
        outcome.fate = Fate.DONE
    elif outcome.fate is Fate.LOST:
        outcome.why = response.text


def _is_answered(outcome: Outcome, status: int, headers: httpx.Headers) -> bool:
    if status == 503 and "retry-after" in headers:
        outcome.fate = Fate.REFUSED
    return status == 200


async def _break(host: str, port: int, request: Request) -> None:
    """Send it, read for a while, then reset the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_raw(request))
        async with asyncio.timeout(request.patience_s):
            while await reader.read(4096):
                pass
    except TimeoutError:
        pass
    finally:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


def _raw(request: Request) -> bytes:
    body = json.dumps(request.body).encode()
    head = (
        f"POST {request.dialect.value} HTTP/1.1\r\nHost: soak\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
