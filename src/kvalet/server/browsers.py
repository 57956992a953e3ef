"""Which web pages may use the server, by what browsers say of them in `Origin` and `Host`.

A browser carries out what any open page asks for, but says where that page came from. A page may
use the server if it came from the server itself or from this machine, or if its origin was given;
what another one asks for is refused before anything is done. Where only this machine can connect,
a page that came "from the server" must have called it by a name of this machine: a foreign name
that leads here is DNS rebinding. Clients that are no browsers send no `Origin` and are not
concerned.
"""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from kvalet.server.errors import Tell

ANY_ORIGIN = "*"


@dataclass(frozen=True, slots=True)
class Pages:
    """`host`: the address the server was told to listen on. `origins`: of pages that may use it,
    beside this machine's."""

    host: str
    origins: Collection[str] = ()

    def refusal(self, scope: Scope) -> str | None:
        """What is wrong with a request, if anything."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if ANY_ORIGIN in self.origins:
            return None
        if host and _is_private(scope, self.host) and not self._is_called(host):
            return f"the server is not called {host[:80]!r}; --cors-origins can give it that name"
        if origin is not None and not _is_own(origin, host) and not self.allows(origin):
            return f"pages from {origin[:80]!r} may not use the server; see --cors-origins"
        return None

    def allows(self, origin: str) -> bool:
        return origin in self.origins or _is_loopback(_name_of(_authority(origin)))

    def _is_called(self, host: str) -> bool:
        name = _name_of(host)
        names = [self.host.lower(), *(_name_of(_authority(origin)) for origin in self.origins)]
        return _is_loopback(name) or name in names


class PageCheck(CORSMiddleware):
    """ASGI middleware. Answers 403 to pages that may not use the server, and tells browsers that
    the others may read what it says. Never with credentials: nothing here is kept in cookies."""

    def __init__(self, app: ASGIApp, pages: Pages, tell: Tell) -> None:
        super().__init__(
            app,
            allow_origins=[ANY_ORIGIN] if ANY_ORIGIN in pages.origins else [],
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # a page of the internet that was named may ask a local one
        )
        self._pages = pages
        self._tell = tell

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._pages.refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await super().__call__(scope, receive, send)
        else:
            await self._tell(scope, HTTPException(403, refusal))(scope, receive, send)

    @override
    def is_allowed_origin(self, origin: str) -> bool:
        return self.allow_all_origins or self._pages.allows(origin)


def _is_private(scope: Scope, listening: str) -> bool:
    """Whether only this machine can connect where the request came in. A server that listens on
    every address is called by names that it cannot know, also by proxies on this machine."""
    local = scope.get("server")
    return local is not None and _is_loopback(local[0]) and not _is_wildcard(listening)


def _is_own(origin: str, host: str) -> bool:
    """Whether the page came from where it asks now."""
    return bool(host) and _authority(origin) == host.lower()


def _authority(origin: str) -> str:
    """Empty for the `null` of pages that have none."""
    return origin.partition("://")[2]


def _name_of(authority: str) -> str:
    """Without the port; empty if it is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):  # browsers ask no DNS for these
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
