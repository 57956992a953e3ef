"""`kvalet serve`: joins model file, engine, scheduler and HTTP, and says on the terminal what runs.

Decides nothing that a flag does not say; every part is handed what it needs.
"""

import logging
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.markup import escape

from kvalet.config import DEFAULT_CTX_LIMIT, ServeConfig, knobs
from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import PAGE_CELLS, pages_for
from kvalet.engine.base import EngineInfo
from kvalet.engine.ggml.engine import load_engine
from kvalet.errors import ConfigError
from kvalet.model import sources
from kvalet.model.chat_template import ChatTemplate
from kvalet.model.gguf import GGUFFile
from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.service import Service
from kvalet.runtime.stream import Vocabulary
from kvalet.server.desk import ServerSettings
from kvalet.server.ports import ServedModel
from kvalet.server.run import run as run_server

# The engine thread waits at most this long for Python code of another one (docs/adr/0005).
SWITCH_INTERVAL_S = 2e-4

# How long the exactness probe may take; what it finds is kept for the next start.
PROBE_S = {"auto": 0.3, "on": math.inf, "off": 0.0}


def run(config: ServeConfig) -> int:
    """Serve until a signal; returns the exit code. Raises KvaletError for what cannot be served."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    console = Console(soft_wrap=True, highlight=False)
    path = sources.resolve(config.model)
    for knob in knobs(config):
        console.print(f"test knob set: {knob}", style="yellow")
    settings = ServerSettings(
        host=config.host,
        port=config.port,
        api_keys=(config.api_key,) if config.api_key else (),
        max_new_tokens=config.predict,
    )
    facts: list[str] = []

    def load() -> ServedModel:
        model, info = load_model(config, path)
        facts.extend(_facts(model, info))
        if config.exact != "off":
            facts.append(_exactness(info))
        return model

    def announce(url: str) -> None:
        listening = f"listening on [bold]{escape(url)}[/], Ctrl-C stops\n"
        console.print(*facts, listening, *_curl(url, config), sep="\n")

    return run_server(settings, load, announce)


def load_model(config: ServeConfig, path: Path) -> tuple[ServedModel, EngineInfo]:
    """Everything that serves the model of a file, its engine thread running."""
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
        template = ChatTemplate.from_gguf(file)
        architecture = file.text("general.architecture")
        n_ctx_train = file.integer(f"{architecture}.context_length")
        n_embd = file.integer(f"{architecture}.embedding_length")
        n_params = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    service, info = _start_engine(config, path, n_ctx_train, tokenizer)
    model = ServedModel(
        name=config.alias or path.stem,
        path=str(path),
        service=service,
        tokenizer=tokenizer,
        template=template,
        n_ctx_train=n_ctx_train,
        n_embd=n_embd,
        n_params=n_params,
        size_bytes=path.stat().st_size,
        props=_props(info),
    )
    return model, info


def _start_engine(
    config: ServeConfig, path: Path, n_ctx_train: int, tokenizer: Tokenizer
) -> tuple[Service, EngineInfo]:
    n_ctx = _context(config.ctx_size, n_ctx_train)
    batch_size = max(config.batch_size, config.parallel)  # all slots decode in one step
    engine = load_engine(
        path,
        num_pages=pages_for(n_ctx),
        threads=config.threads or _num_processors(),
        max_step_tokens=batch_size,
        max_seqs=config.parallel,
        poison=config.check,
        probe_s=PROBE_S[config.exact],
        cache_dir=platformdirs.user_cache_path("kvalet", appauthor=False) / "facts",
    )
    if config.exact == "on":
        _require_exact(engine.info)
    scheduling = SchedulerConfig(
        num_slots=config.parallel,
        n_ctx=n_ctx,
        batch_size=batch_size,
        max_queue=config.max_queue,
        preempt_every=config.preempt_every,
    )
    vocabulary = Vocabulary(tokenizer.token_bytes, frozenset(tokenizer.eog_ids))
    service = Service(engine, scheduling, vocabulary, check_every_step=config.check)
    service.start()
    return service, engine.info


def _require_exact(info: EngineInfo) -> None:
    """Raises ConfigError naming the widths at which this machine computes other bits."""
    if differ := _widths(info, "differ"):
        raise ConfigError(
            f"--exact on: {info.report['device']} computes other bits in steps of "
            f"{', '.join(differ)} with these weights; --exact auto serves all the same"
        )


def _widths(info: EngineInfo, verdict: str) -> list[str]:
    """What the exactness probe found `same`, `differ` or `unproven`, as it names them."""
    report = info.report["exactness"]
    return list(report[verdict]) if isinstance(report, dict) else []


def _context(wanted: int | None, n_ctx_train: int) -> int:
    if wanted is None:
        return min(n_ctx_train, DEFAULT_CTX_LIMIT)
    return wanted or n_ctx_train


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _props(info: EngineInfo) -> dict[str, object]:
    pool = {"num_pages": info.num_pages, "page_cells": PAGE_CELLS, "page_bytes": info.page_bytes}
    return {"pool": pool, "engine": dict(info.report)}


def _facts(model: ServedModel, info: EngineInfo) -> Iterator[str]:
    """What runs, in a few lines for whoever started it."""
    report, service = info.report, model.service
    cells, pool_bytes = info.num_pages * PAGE_CELLS, info.num_pages * info.page_bytes
    yield (
        f"[bold]{escape(model.name)}[/], {model.n_params / 1e6:,.0f} million parameters, "
        f"{model.size_bytes / 2**20:,.0f} MiB"
    )
    yield f"{report['device']}, {report['native']} kernels, threads: {report['threads']}"
    yield (
        f"{service.num_slots} slots share a pool of {cells:,} KV cells, "
        f"{pool_bytes / 2**20:,.0f} MiB"
    )
    if service.n_ctx > model.n_ctx_train:
        yield f"[yellow]the model was trained for a context of {model.n_ctx_train:,} tokens[/]"


def _exactness(info: EngineInfo) -> str:
    """What the probe found, in a line."""
    if differ := _widths(info, "differ"):
        return f"[yellow]not exact: other bits in steps of {', '.join(differ)}[/]"
    if unproven := _widths(info, "unproven"):
        num_same = len(_widths(info, "same"))
        return f"exact at {num_same} widths of a step; not tried yet: {', '.join(unproven)}"
    return "exact: a token's bits do not depend on who else is served"


def _curl(url: str, config: ServeConfig) -> Iterator[str]:
    """A request to try, as a shell command."""
    yield f"  curl {escape(url)}/v1/chat/completions -H 'Content-Type: application/json' \\"
    if config.api_key:
        yield '    -H "Authorization: Bearer $LLAMA_API_KEY" \\'
    yield """    -d '{"messages": [{"role": "user", "content": "Hello!"}]}'"""
