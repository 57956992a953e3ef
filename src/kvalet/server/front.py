"""What the server answers at `/`: what it is, what it serves and where, for people and programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Self

from starlette.routing import BaseRoute, Route

from kvalet import __version__

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>kvalet</title>
<style>body {{ font: 1rem/1.6 system-ui; max-width: 40rem; margin: 2rem auto }}</style>
</head>
<body>
<h1>kvalet {version}</h1>
<p>Model: {model}. Status: {status}.</p>
<ul>
{endpoints}
</ul>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Front:
    status: str  # "ok", or why nothing can be asked
    model: str | None  # None: not loaded yet
    endpoints: tuple[str, ...]  # "GET /health" and so on
    name: str = "kvalet"
    version: str = __version__

    @classmethod
    def of(cls, status: str, model: str | None, routes: Sequence[BaseRoute]) -> Self:
        return cls(status, model, tuple(sorted(set(_endpoints(routes)))))

    def page(self) -> str:
        return _PAGE.format(
            version=self.version,
            model=escape(self.model or "none yet"),
            status=escape(self.status),
            endpoints="\n".join(f"<li><code>{escape(one)}</code>" for one in self.endpoints),
        )


def prefers_html(accept: str) -> bool:
    """Whether an `Accept` header names HTML, and before JSON: browsers do so."""
    kinds = [kind.partition(";")[0].strip() for kind in accept.lower().split(",")]
    named = [kind for kind in kinds if kind in ("text/html", "application/json")]
    return named[:1] == ["text/html"]


def _endpoints(routes: Sequence[BaseRoute]) -> Iterator[str]:
    """HEAD is wherever GET is, and not told."""
    for route in routes:
        if isinstance(route, Route):
            yield from (
                f"{method} {route.path}" for method in (route.methods or ()) if method != "HEAD"
            )
