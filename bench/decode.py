"""Decode over HTTP: tokens per second, and what part of a step is not ggml's.

Starts a real server with an ample pool; one chat, then four at once. From the moment all chats
have a token until the last one ends, wall time is compared with the time the server spent in
ggml's graph executor (`compute_seconds_total`). The last line is JSON.
"""

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvalet.bench.chats import TIMEOUT, Chat, ChatState, stream_chat
from kvalet.bench.process import ServerProcess
from kvalet.bench.prompts import pressing_chats


@dataclass(frozen=True)
class Decoding:
    tokens_per_s: float
    step_ms: float
    compute_ms: float

    @property
    def outside(self) -> float:
        """Part of a step that is not ggml's compute."""
        return 1 - self.compute_ms / self.step_ms


async def decode(url: str, num_chats: int, num_tokens: int) -> Decoding:
    chats = [Chat(name, body) for name, body in pressing_chats(num_tokens)[:num_chats]]
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        tasks = [asyncio.create_task(stream_chat(http, chat)) for chat in chats]
        while any(chat.state is ChatState.WAITING for chat in chats):
            await asyncio.sleep(0.005)
        start, before = time.monotonic(), await _counters(http)
        await asyncio.gather(*tasks)
        wall_s, after = time.monotonic() - start, await _counters(http)
    if any(chat.num_tokens != num_tokens for chat in chats):
        raise SystemExit(f"a chat ended early: {[chat.error for chat in chats]}")
    num_steps = after["n_decode_total"] - before["n_decode_total"]
    return Decoding(
        (after["tokens_predicted_total"] - before["tokens_predicted_total"]) / wall_s,
        1e3 * wall_s / num_steps,
        1e3 * (after["compute_seconds_total"] - before["compute_seconds_total"]) / num_steps,
    )


async def _counters(http: httpx.AsyncClient) -> Mapping[str, float]:
    text = (await http.get("/metrics")).text
    families = text_string_to_metric_families(text)
    samples = (sample for family in families for sample in family.samples)
    return {sample.name.removeprefix("llamacpp:"): sample.value for sample in samples}


def _circumstances() -> dict[str, str]:
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False).stdout
    names = ("kvalet", "ggml-python", "numpy")
    return {
        "commit": commit.strip(),
        "machine": platform.platform(),
        **{name: version(name) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    results: dict[str, object] = {**_circumstances(), **vars(args)}
    print("chats   tok/s (range)          step ms   ggml ms   outside")
    with ServerProcess("-m", args.model) as server:
        asyncio.run(decode(server.url, 1, 8))  # the first steps build graphs
        for count in (1, 4):
            runs = [
                asyncio.run(decode(server.url, count, args.tokens)) for _ in range(args.repeats)
            ]
            median = sorted(runs, key=lambda run: run.tokens_per_s)[len(runs) // 2]
            speeds = [run.tokens_per_s for run in runs]
            outside = statistics.median(run.outside for run in runs)
            spread = f"({min(speeds):.0f}-{max(speeds):.0f})"
            print(
                f"{count:5} {median.tokens_per_s:7.1f} {spread:>12} {median.step_ms:12.2f} "
                f"{median.compute_ms:9.2f} {outside:9.1%}"
            )
            results[f"{count}_chats"] = [asdict(run) for run in runs]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
