"""What `kvalet serve` says on the terminal: what runs, how exact it is, a request to try."""

from collections.abc import Iterator

from rich.markup import escape

from kvalet.core.plan import PAGE_CELLS
from kvalet.engine.base import EngineInfo
from kvalet.server.model import ServedModel


def facts(model: ServedModel, info: EngineInfo) -> Iterator[str]:
    """What runs, in a few lines for the terminal."""
    report, service = info.report, model.service
    cells, pool_bytes = info.num_pages * PAGE_CELLS, info.num_pages * info.page_bytes
    yield (
        f"[bold]{escape(model.name)}[/], {model.n_params / 1e6:,.0f} million parameters, "
        f"{model.size_bytes / 2**20:,.0f} MiB"
    )
    yield f"{report.device}, {report.native} kernels, threads: {report.threads}"
    yield (
        f"{service.num_slots} slots share a pool of {cells:,} KV cells, "
        f"{pool_bytes / 2**20:,.0f} MiB"
    )
    if report.copies == "synchronous":
        yield "a step waits for copies between pool and host"
    if service.n_ctx > model.n_ctx_train:
        yield f"[yellow]the model was trained for a context of {model.n_ctx_train:,} tokens[/]"


def exactness(info: EngineInfo) -> str:
    """What the probe found, in a line."""
    found = info.report.exactness
    if found.differ:
        return f"[yellow]not exact: other bits in steps of {', '.join(found.differ)}[/]"
    if found.unproven:
        return (
            f"exact at {len(found.same)} widths of a step; "
            f"not tried yet: {', '.join(found.unproven)}"
        )
    return "exact: a token's bits do not depend on what else is served"


def curl(url: str, *, has_key: bool) -> Iterator[str]:
    """A request to try, as a shell command."""
    yield f"  curl {escape(url)}/v1/chat/completions -H 'Content-Type: application/json' \\"
    if has_key:
        yield '    -H "Authorization: Bearer $LLAMA_API_KEY" \\'
    yield """    -d '{"messages": [{"role": "user", "content": "Hello!"}]}'"""
