"""`kvalet serve`: joins model file, engine, scheduler and HTTP, and says on the terminal what runs.

Decides nothing that a flag does not say; every part is handed what it needs.
"""

import logging
import math
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.markup import escape

from kvalet.cli import announce
from kvalet.cli.config import knobs
from kvalet.cli.flags import DEFAULT_CTX_LIMIT, ServeConfig
from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import PAGE_CELLS, pages_for
from kvalet.engine.base import EngineInfo
from kvalet.engine.ggml.engine import load_engine
from kvalet.errors import ConfigError
from kvalet.machine import num_processors
from kvalet.model import sources
from kvalet.model.chat_template import ChatTemplate
from kvalet.model.gguf import GGUFFile
from kvalet.model.hyperparameters import HyperParameters
from kvalet.model.tokenizer import Tokenizer
from kvalet.partial import remove_leftovers
from kvalet.runtime.record import StepRecorder
from kvalet.runtime.service import Service
from kvalet.runtime.stream import Vocabulary
from kvalet.server.model import ServedModel
from kvalet.server.run import run as run_server
from kvalet.settings import values_of

# The engine thread waits at most this long for Python code of another one (docs/adr/0005).
SWITCH_INTERVAL_S = 2e-4

# How long the exactness probe may take; what it finds is kept for the next start.
PROBE_S = {"auto": 0.3, "on": math.inf, "off": 0.0}

MIN_CTX = 2  # cells
MIN_SHIFT_CTX = 64  # cells: a page to keep and one to forget

logger = logging.getLogger(__name__)


def run(config: ServeConfig) -> int:
    """Serve until a signal; returns the exit code. Raises KvaletError for what cannot be served."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    console = Console(soft_wrap=True, highlight=False)
    path = sources.resolve(config.load.model)
    for knob in knobs(config):
        console.print(f"test knob set: {knob}", style="yellow")
    if config.preemption.entry_order == "pass":
        logger.warning("--preempt-resume pass: small chats may keep a large one waiting for long")
    if config.http.slot_save_path:
        _remove_leftovers(config.http.slot_save_path)
    facts: list[str] = []

    def load() -> ServedModel:
        model, info = load_model(config, path)
        facts.extend(announce.facts(model, info))
        if config.load.exact != "off":
            facts.append(announce.exactness(info))
        return model

    def on_ready(url: str) -> None:
        listening = f"listening on [bold]{escape(url)}[/], Ctrl-C stops\n"
        console.print(
            *facts, listening, *announce.curl(url, has_key=bool(config.http.api_keys)), sep="\n"
        )

    return run_server(config.http, load, on_ready)


def _remove_leftovers(folder: Path) -> None:
    """Of saves that a killed process did not end."""
    try:
        remove_leftovers(folder)
    except OSError as error:
        raise ConfigError(f"--slot-save-path {folder}: {error.strerror}") from None


def load_model(config: ServeConfig, path: Path) -> tuple[ServedModel, EngineInfo]:
    """Everything that serves the model of a file, its engine thread running."""
    with ExitStack() as stack:
        file = stack.enter_context(GGUFFile.open(path))
        tokenizer = Tokenizer.from_gguf(file)
        template = ChatTemplate.from_gguf(file)
        keys = HyperParameters(file)
        n_ctx_train = keys.integer("context_length")
        n_embd = keys.integer("embedding_length")
        n_params = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
        service, info, scheduling = _start_engine(config, file, n_ctx_train, tokenizer)
        stack.pop_all()  # the engine has taken the file over
    model = ServedModel(
        name=config.load.alias or path.stem,
        path=str(path),
        service=service,
        tokenizer=tokenizer,
        template=template,
        n_ctx_train=n_ctx_train,
        n_embd=n_embd,
        n_params=n_params,
        size_bytes=file.num_bytes,
        props=props(info, config, scheduling),
    )
    return model, info


def _recorder(config: ServeConfig, page_bytes: int) -> StepRecorder | None:
    if not config.watch.record:
        return None
    path = Path(config.watch.record)
    return StepRecorder(path, page_bytes=page_bytes, is_async=config.copies.beside_steps)


def _start_engine(
    config: ServeConfig, file: GGUFFile, n_ctx_train: int, tokenizer: Tokenizer
) -> tuple[Service, EngineInfo, SchedulerConfig]:
    n_ctx = context(config, n_ctx_train)
    engine = load_engine(
        file,
        num_pages=pages_for(n_ctx),
        threads=config.load.threads or num_processors(),
        max_step_tokens=config.steps.max_tokens(config.slots.num_slots),
        max_seqs=config.slots.num_slots,
        poison=config.watch.check,
        probe_s=PROBE_S[config.load.exact],
        cache_dir=platformdirs.user_cache_path("kvalet", appauthor=False) / "facts",
        async_copies=config.copies.beside_steps,
        disk_dir=config.disk.folder,
    )
    try:
        if config.load.exact == "on":
            _require_exact(engine.info)
        recorder = _recorder(config, engine.info.page_bytes)
    except ConfigError:
        engine.close()
        raise
    scheduling = scheduler_config(config, n_ctx, engine.info.page_bytes)
    vocabulary = Vocabulary(tokenizer.token_bytes, frozenset(tokenizer.eog_ids))
    service = Service(
        engine, scheduling, vocabulary, check_every_step=config.watch.check, recorder=recorder
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


def scheduler_config(config: ServeConfig, n_ctx: int, page_bytes: int) -> SchedulerConfig:
    """`n_ctx` in cells."""
    disk = config.disk.limit if config.disk.folder else 0
    return SchedulerConfig(
        n_ctx=n_ctx,
        slots=config.slots,
        steps=config.steps,
        shift=config.shift,
        preemption=config.preemption,
        host_budget=config.memory.budget(page_bytes, disk),
        lookahead_steps=config.copies.lookahead_steps,
        mirror=config.copies.mirror,
    )


def context(config: ServeConfig, n_ctx_train: int) -> int:
    """Cells of the pool. Raises ConfigError for one too small for what is asked of it."""
    n_ctx = config.load.ctx_size or n_ctx_train
    if config.load.ctx_size is None:
        n_ctx = min(n_ctx_train, DEFAULT_CTX_LIMIT)
    if n_ctx < MIN_CTX:
        raise ConfigError(f"--ctx-size: {n_ctx} cells hold no prompt and an answer")
    if config.shift.context_shift and n_ctx < MIN_SHIFT_CTX:
        raise ConfigError(
            f"--context-shift needs a --ctx-size of at least {MIN_SHIFT_CTX} cells, not {n_ctx}"
        )
    return n_ctx


def props(info: EngineInfo, config: ServeConfig, scheduling: SchedulerConfig) -> dict[str, object]:
    """What /props says of pool, engine (its exactness too) and preemption (behaviour M2). What a
    flag sets has the flag's name."""
    pool = {"num_pages": info.num_pages, "page_cells": PAGE_CELLS, "page_bytes": info.page_bytes}
    budget = scheduling.host_budget
    preemption = {
        **values_of(scheduling.preemption),
        **values_of(scheduling.shift),
        **values_of(config.copies),
        "preempt_policy": scheduling.preemption.victims,
        "lookahead_steps": scheduling.lookahead_steps,
        "copies": info.report.copies,
        "host_budget_bytes": _in_bytes(budget.parked, info.page_bytes),
        "disk_budget_bytes": _in_bytes(budget.disk, info.page_bytes),
        "cache_budget_bytes": _in_bytes(budget.cached, info.page_bytes),
    }
    return {"pool": pool, "engine": asdict(info.report), "preemption": preemption}


def _in_bytes(num_pages: int | None, page_bytes: int) -> int | None:
    """None: no limit."""
    return None if num_pages is None else num_pages * page_bytes
