"""`kvalet serve`: joins model file, engine, scheduler and HTTP, and says on the terminal what runs.

Decides nothing that a flag does not say; every part is handed what it needs.
"""

import logging
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.markup import escape

from kvalet.cli import announce
from kvalet.cli.config import knobs
from kvalet.cli.flags import DEFAULT_CTX_LIMIT, UNLIMITED, ServeConfig
from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import PAGE_CELLS, pages_for
from kvalet.engine.base import EngineInfo
from kvalet.engine.ggml.engine import load_engine
from kvalet.errors import ConfigError
from kvalet.model import sources
from kvalet.model.chat_template import ChatTemplate
from kvalet.model.gguf import GGUFFile
from kvalet.model.tokenizer import Tokenizer
from kvalet.runtime.record import StepRecorder
from kvalet.runtime.service import Service
from kvalet.runtime.stream import Vocabulary
from kvalet.server.model import ServedModel
from kvalet.server.run import run as run_server
from kvalet.server.state import ServerSettings

# The engine thread waits at most this long for Python code of another one (docs/adr/0005).
SWITCH_INTERVAL_S = 2e-4

# How long the exactness probe may take; what it finds is kept for the next start.
PROBE_S = {"auto": 0.3, "on": math.inf, "off": 0.0}

MIN_CTX = 2  # cells
MIN_SHIFT_CTX = 64  # cells: a page to keep and one to forget
MIB = 1 << 20

LOOKAHEAD_STEPS = 8  # while copies run beside steps (behaviour P1)

logger = logging.getLogger(__name__)


def run(config: ServeConfig) -> int:
    """Serve until a signal; returns the exit code. Raises KvaletError for what cannot be served."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    console = Console(soft_wrap=True, highlight=False)
    path = sources.resolve(config.model)
    for knob in knobs(config):
        console.print(f"test knob set: {knob}", style="yellow")
    if config.preempt_resume == "pass":
        logger.warning("--preempt-resume pass: small chats may keep a large one waiting for long")
    facts: list[str] = []

    def load() -> ServedModel:
        model, info = load_model(config, path)
        facts.extend(announce.facts(model, info))
        if config.exact != "off":
            facts.append(announce.exactness(info))
        return model

    def on_ready(url: str) -> None:
        listening = f"listening on [bold]{escape(url)}[/], Ctrl-C stops\n"
        console.print(*facts, listening, *announce.curl(url, config), sep="\n")

    return run_server(server_settings(config), load, on_ready)


def server_settings(config: ServeConfig) -> ServerSettings:
    return ServerSettings(
        host=config.host,
        port=config.port,
        api_keys=(config.api_key,) if config.api_key else (),
        cors_origins=config.cors_origins,
        max_new_tokens=None if config.predict == UNLIMITED else config.predict,
        sse_ping_interval_s=config.sse_ping_interval,
        park_timeout_s=config.park_timeout,
        drain_s=config.drain_seconds,
        slot_save_path=_folder(config.slot_save_path),
    )


def _folder(path: str | None) -> Path | None:
    return None if path is None else Path(path)


def load_model(config: ServeConfig, path: Path) -> tuple[ServedModel, EngineInfo]:
    """Everything that serves the model of a file, its engine thread running."""
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
        template = ChatTemplate.from_gguf(file)
        architecture = file.text("general.architecture")
        n_ctx_train = file.integer(f"{architecture}.context_length")
        n_embd = file.integer(f"{architecture}.embedding_length")
        n_params = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    service, info, scheduling = _start_engine(config, path, n_ctx_train, tokenizer)
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
        props=props(info, scheduling),
    )
    return model, info


def _recorder(config: ServeConfig, page_bytes: int) -> StepRecorder | None:
    if not config.record:
        return None
    path = Path(config.record)
    return StepRecorder(path, page_bytes=page_bytes, is_async=config.preempt_async)


def _start_engine(
    config: ServeConfig, path: Path, n_ctx_train: int, tokenizer: Tokenizer
) -> tuple[Service, EngineInfo, SchedulerConfig]:
    n_ctx = context(config, n_ctx_train)
    engine = load_engine(
        path,
        num_pages=pages_for(n_ctx),
        threads=config.threads or _num_processors(),
        max_step_tokens=_batch_size(config),
        max_seqs=config.parallel,
        poison=config.check,
        probe_s=PROBE_S[config.exact],
        cache_dir=platformdirs.user_cache_path("kvalet", appauthor=False) / "facts",
        async_copies=config.preempt_async,
        disk_dir=_folder(config.preempt_disk),
    )
    try:
        if config.exact == "on":
            _require_exact(engine.info)
        recorder = _recorder(config, engine.info.page_bytes)
    except ConfigError:
        engine.close()
        raise
    scheduling = scheduler_config(config, n_ctx, engine.info.page_bytes)
    vocabulary = Vocabulary(tokenizer.token_bytes, frozenset(tokenizer.eog_ids))
    service = Service(
        engine, scheduling, vocabulary, check_every_step=config.check, recorder=recorder
    )
    service.start()
    return service, engine.info, scheduling


def _require_exact(info: EngineInfo) -> None:
    """Raises ConfigError naming the widths at which this machine computes other bits."""
    if differ := info.report.exactness.differ:
        raise ConfigError(
            f"--exact on: {info.report.device} computes other bits in steps of "
            f"{', '.join(differ)} with these weights; --exact auto serves all the same"
        )


def _batch_size(config: ServeConfig) -> int:
    return max(config.batch_size, config.parallel)  # all slots decode in one step


def scheduler_config(config: ServeConfig, n_ctx: int, page_bytes: int) -> SchedulerConfig:
    """`n_ctx` in cells."""
    return SchedulerConfig(
        num_slots=config.parallel,
        n_ctx=n_ctx,
        batch_size=_batch_size(config),
        max_queue=config.max_queue,
        prefill_stretch=config.prefill_stretch,
        preempt=config.preempt,
        trigger=config.preempt_trigger,
        high_percent=config.preempt_high,
        low_percent=config.preempt_low,
        victim_policy=config.preempt_policy,
        entry_order=config.preempt_resume,
        rotate_s=config.preempt_rotate,
        context_shift=config.context_shift,
        starved_after=config.preempt_starved,
        replay_margin=config.preempt_replay_margin,
        lookahead_steps=LOOKAHEAD_STEPS if config.preempt_async else 1,
        host_budget_pages=_pages(config.preempt_ram, page_bytes),
        disk_budget_pages=_disk_pages(config, page_bytes),
        cache_budget_pages=_pages(config.cache_ram, page_bytes),
        mirror=config.preempt_mirror and config.preempt_async,
        preempt_every=config.preempt_every,
        planner=config.preempt_planner,
    )


def _pages(budget_mib: int, page_bytes: int) -> int | None:
    return None if budget_mib == UNLIMITED else budget_mib * MIB // page_bytes


def _disk_pages(config: ServeConfig, page_bytes: int) -> int | None:
    return _pages(config.preempt_disk_limit, page_bytes) if config.preempt_disk else 0


def context(config: ServeConfig, n_ctx_train: int) -> int:
    """Cells of the pool. Raises ConfigError for one too small for what is asked of it."""
    n_ctx = config.ctx_size or n_ctx_train
    if config.ctx_size is None:
        n_ctx = min(n_ctx_train, DEFAULT_CTX_LIMIT)
    if n_ctx < MIN_CTX:
        raise ConfigError(f"--ctx-size: {n_ctx} cells hold no prompt and an answer")
    if config.context_shift and n_ctx < MIN_SHIFT_CTX:
        raise ConfigError(
            f"--context-shift needs a --ctx-size of at least {MIN_SHIFT_CTX} cells, not {n_ctx}"
        )
    return n_ctx


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def props(info: EngineInfo, scheduling: SchedulerConfig) -> dict[str, object]:
    """What /props says of pool, engine (its exactness too) and preemption (behaviour M2)."""
    pool = {"num_pages": info.num_pages, "page_cells": PAGE_CELLS, "page_bytes": info.page_bytes}
    budgets = {
        "host_budget_bytes": scheduling.host_budget_pages,
        "disk_budget_bytes": scheduling.disk_budget_pages,
        "cache_budget_bytes": scheduling.cache_budget_pages,
    }
    preemption = {
        "enabled": scheduling.preempt,
        "trigger": scheduling.trigger,
        "high_percent": scheduling.high_percent,
        "low_percent": scheduling.low_percent,
        "policy": scheduling.victims,
        "resume": scheduling.entry_order,
        "starved_after": scheduling.starved_after,
        "rotate_s": scheduling.rotate_s,
        "context_shift": scheduling.context_shift,
        "lookahead_steps": scheduling.lookahead_steps,
        "replay_margin": scheduling.replay_margin,
        "mirror": scheduling.mirror,
        "copies": info.report.copies,
        **{name: _in_bytes(pages, info.page_bytes) for name, pages in budgets.items()},
    }
    return {"pool": pool, "engine": asdict(info.report), "preemption": preemption}


def _in_bytes(num_pages: int | None, page_bytes: int) -> int | None:
    """None: no limit."""
    return None if num_pages is None else num_pages * page_bytes
