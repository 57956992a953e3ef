"""Reading a request's body, within its limit."""

from starlette.exceptions import HTTPException
from starlette.requests import Request


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises HTTPException 413 beyond `max_bytes`, before taking it in."""
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"the request body is larger than {max_bytes} bytes")
