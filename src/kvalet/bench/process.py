"""A real `kvalet serve` process on a free port, gone when its block ends, however that ends.

Knows the server by its command line and its URL only.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from os import environ
from types import TracebackType
from typing import Self

from kvalet.errors import EngineError

_URL = re.compile(r"http://\S+:\d+")
_GRACE_S = 5.0  # the server itself promises two seconds


def model_flags(model: str | None) -> tuple[str, ...]:
    """None: the default model."""
    return ("-m", model) if model else ()


class ServerProcess:
    """`with ServerProcess("-c", "2048") as server:` waits until the server answers.

    Raises EngineError with the server's own words if it ends instead, or takes over `timeout_s`.
    """

    def __init__(
        self, *flags: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> None:
        self._command = [sys.executable, "-m", "kvalet", "serve", "--port", "0", *flags]
        self._env = {**environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._timeout_s = timeout_s
        self.url = ""

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self._command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            self.url = self._wait_for_url()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def output(self) -> str:
        """What the server has printed so far."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> int:
        """End the process, politely first. Returns its exit code; safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        self._log.close()
        return code

    def _find_url(self) -> str | None:
        """Once it answers."""
        found = _URL.search(self.output())
        return found.group() if found else None

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if found := self._find_url():
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        said = self.output().strip() or "nothing"
        raise EngineError(f"the server did not start; it said: {said}")
