"""A server's life: listen, load, serve, stop.

The main thread runs the event loop; the model loads beside it, and requests get 503 until it is
there. A signal, or the death of the engine, ends every request with a message; SIGTERM lets those
being served go on for `drain_s` before. Whatever hangs after that, the process is gone
`EXIT_WITHIN_S` later (behaviour C5), also where no further thread can be had.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

import uvicorn
from typing_extensions import override

from kvalet.errors import Overloaded
from kvalet.server.app import create_app
from kvalet.server.listen import listen, url_of
from kvalet.server.model import ServedModel
from kvalet.server.settings import ServerSettings
from kvalet.server.state import AppState, engine_stopped

logger = logging.getLogger(__name__)

EXIT_WITHIN_S = 1.5  # from the signal to the end of the process, whatever hangs
SLOW_CLIENTS_S = 0.5  # what clients get to read their last event
POLL_S = 0.1  # between looks at the engine, and at what is left while draining
KEEP_ALIVE_S = 75
EXIT_ENGINE_DIED = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHUTTING_DOWN = "the server is shutting down"

T = TypeVar("T")

Load = Callable[[], ServedModel]
OnReady = Callable[[str], None]


def run(settings: ServerSettings, load: Load, on_ready: OnReady) -> int:
    """Serve until a signal; returns the exit code, and further signals are ignored. Call it on the
    main thread.

    `load` runs on a thread of its own. `on_ready` gets the URL once requests are served. Raises
    ConfigError if the address cannot be listened on, before anything is loaded, and whatever
    `load` raises.
    """
    with listen(settings.host, settings.port) as sock:
        life = _Life(settings, load, on_ready)
        with asyncio.Runner(loop_factory=life.new_event_loop) as runner:
            runner.run(life.live(sock))
    for number in STOP_SIGNALS:  # the process is ending: one more changes nothing
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # the interpreter's last collection takes longer than everything above
    return life.exit_code


class _HttpServer(uvicorn.Server):
    """Leaves signals to us."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def drop_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Deadline:
    """Ends the process `EXIT_WITHIN_S` after `start`, unless it is lifted. Its thread is there from
    the beginning: there may be none to be had at the end."""

    def __init__(self, exit_now: Callable[[], None]) -> None:
        self._exit_now = exit_now
        self._started = threading.Event()
        self._lifted = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self) -> None:
        self._started.set()

    def lift(self) -> None:
        self._lifted.set()

    def _watch(self) -> None:
        self._started.wait()
        if not self._lifted.wait(EXIT_WITHIN_S):
            self._exit_now()


class _Life:
    def __init__(self, settings: ServerSettings, load: Load, on_ready: OnReady) -> None:
        self.exit_code = 0
        self._drain_s = settings.drain_s
        self._drain_until: float | None = None  # while draining; a time of the event loop
        self._state = AppState(settings)
        self._load = load
        self._on_ready = on_ready
        self._stopping = asyncio.Event()
        self._deadline = _Deadline(self._exit_now)
        config = uvicorn.Config(
            create_app(self._state),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._http = _HttpServer(config)
        self.new_event_loop = config.get_loop_factory()

    async def live(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop, SHUTTING_DOWN)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        http = asyncio.create_task(self._http.serve([sock]))
        model: ServedModel | None = None
        try:
            if model := await self._loaded():
                await self._serve(model, url_of(sock))
        finally:
            self._stop(SHUTTING_DOWN)
            await http
            await self._cleaned_up(model)

    async def _loaded(self) -> ServedModel | None:
        """The model, or None if a stop comes first."""
        loading = asyncio.wrap_future(_on_daemon(self._load))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((loading, stop), return_when="FIRST_COMPLETED")
        stop.cancel()
        return loading.result() if loading.done() else None

    async def _serve(self, model: ServedModel, url: str) -> None:
        """Serve until the stop, or until the engine dies."""
        self._state.open(model)
        self._on_ready(url)
        while not self._stopping.is_set():
            if not model.service.alive:
                self.exit_code = EXIT_ENGINE_DIED
                self._stop(engine_stopped(model))
            elif self._is_drained():
                self._stop(SHUTTING_DOWN)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), POLL_S)

    def _terminate(self) -> None:
        """Drain first, if that is wanted and something is being served; not when said twice."""
        if not self._drain_s or self._state.is_idle or self._drain_until is not None:
            self._stop(SHUTTING_DOWN)
        else:
            self._drain_until = asyncio.get_running_loop().time() + self._drain_s
            self._state.drain(Overloaded(SHUTTING_DOWN))

    def _is_drained(self) -> bool:
        if self._drain_until is None:
            return False
        return self._state.is_idle or asyncio.get_running_loop().time() >= self._drain_until

    def _stop(self, reason: str) -> None:
        """Begin to end; a second call changes nothing, the deadline is running already."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._deadline.start()
        self._state.close(Overloaded(reason))
        self._http.should_exit = True
        asyncio.get_running_loop().call_later(SLOW_CLIENTS_S, self._http.drop_connections)

    async def _cleaned_up(self, model: ServedModel | None) -> None:
        """On a thread if there is one, so that a further signal finds its handler."""
        try:
            cleaning = _on_daemon(lambda: self._clean_up(model))
        except RuntimeError:
            self._clean_up(model)
        else:
            await asyncio.wrap_future(cleaning)

    def _clean_up(self, model: ServedModel | None) -> None:
        """Wait for the threads there are. The deadline is lifted only when none is left."""
        ended = model is None or model.service.close()
        self._state.shut()
        if ended:
            self._deadline.lift()

    def _exit_now(self) -> None:
        logger.error("not everything ended in time; leaving it behind")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(self.exit_code)


def _on_daemon(task: Callable[[], T]) -> Future[T]:
    """Run `task` on a thread that does not hold up the end of the process."""
    future: Future[T] = Future()

    def body() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # it is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return future
