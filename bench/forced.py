"""Parks forced every N tokens, by copying and by computing again: is every text what it was?

    python bench/forced.py [--every 200] [--tokens 600] [-m MODEL]

Ten prompts, three servers: unforced, forced with the default budget, forced with --preempt-ram 0.
"""

import argparse
import asyncio
import json
import sys
import time

import httpx

from kvalet.bench.chats import Chat, stream_together
from kvalet.bench.process import ServerProcess

QUESTIONS = (
    "Why is the sky blue?",
    "How do bees find their way home?",
    "Write a story about a clock that runs backwards.",
    "What makes bread rise?",
    "Describe a walk through a forest in autumn.",
    "How does a sailing boat move against the wind?",
    "Tell me about the history of glass.",
    "What should I know before I adopt a dog?",
    "Explain how a bicycle stays upright.",
    "Compare life in a village with life in a city.",
)


def chats(num_tokens: int) -> list[Chat]:
    settings = {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
    return [
        Chat(f"prompt {i}", {"messages": [{"role": "user", "content": text}], **settings})
        for i, text in enumerate(QUESTIONS)
    ]


def metric(url: str, name: str) -> int:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return int(
        float(next(line for line in lines if line.startswith(f"llamacpp:{name} ")).split()[1])
    )


def run(
    flags: list[str], env: dict[str, str], num_tokens: int
) -> tuple[list[Chat], dict[str, int]]:
    start = time.monotonic()
    with ServerProcess("-c", "8192", *flags, env=env) as server:
        done = asyncio.run(stream_together(server.url, chats(num_tokens)))
        names = ("n_preempt_swap_total", "n_preempt_recompute_total", "n_recompute_tokens_total")
        figures = {name: metric(server.url, name) for name in names}
        figures["preempt_bytes_in_total"] = metric(server.url, "preempt_bytes_in_total")
    return done, {**figures, "seconds": round(time.monotonic() - start)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("-m", "--model")
    args = parser.parse_args()
    model = ["-m", args.model] if args.model else []
    forced = {"LLAMA_SERVER_PREEMPT_EVERY": str(args.every)}
    expected, _ = run(model, {}, args.tokens)
    result = {}
    for name, flags in (("default", []), ("--preempt-ram 0", ["--preempt-ram", "0"])):
        done, figures = run([*model, *flags], forced, args.tokens)
        pairs = zip(done, expected, strict=True)
        figures["identical"] = sum(a.text == b.text and bool(a.text) for a, b in pairs)
        print(f"{name:16} {figures}")
        result[name] = figures
    print(json.dumps(result))
    return 0 if all(figures["identical"] == len(QUESTIONS) for figures in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
