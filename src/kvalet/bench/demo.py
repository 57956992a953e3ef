"""The main job, shown: four chats that do not fit into one pool, all finished, each as it is alone.

Starts a real server, sends the chats together, then one by one with the prefix cache off, and
compares the texts. The last lines of its output are for scripts.
"""

import asyncio
import contextlib
import time

import httpx
from rich.console import Console

from kvalet.bench.chats import TIMEOUT, Chat, stream_chat
from kvalet.bench.demo_view import DemoView
from kvalet.bench.process import ServerProcess
from kvalet.bench.prompts import pressing_chats

POOL_CELLS = 2048
NUM_TOKENS = 700
FLAGS = ("--ctx-size", str(POOL_CELLS), "--parallel", "4")
POLL_S = 0.25


def run(console: Console) -> int:
    """0 if some chat was parked and all are complete and identical to their solo runs, else 1."""
    bodies = pressing_chats(NUM_TOKENS)
    together = [Chat(name, body) for name, body in bodies]
    alone = [Chat(name, {**body, "cache_prompt": False}) for name, body in bodies]
    console.print(f"[bold]kvalet serve {' '.join(FLAGS)}[/]", highlight=False)
    console.print(
        f"four chats at once, each of about 160 prompt tokens and {NUM_TOKENS} to come;\n"
        "then each of them alone\n",
        highlight=False,
    )
    with ServerProcess(*FLAGS) as server:
        view = DemoView(console, together, alone, NUM_TOKENS, POOL_CELLS)
        seconds = asyncio.run(_play(server.url, view, together, alone))
    _print_times(console, *seconds)
    return _verdict(console, together, alone)


async def _play(
    url: str, view: DemoView, together: list[Chat], alone: list[Chat]
) -> tuple[float, float]:
    """Seconds that the chats took together, and one after another."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        with view:
            watch = asyncio.create_task(_watch(http, view))
            start = time.monotonic()
            await asyncio.gather(*(stream_chat(http, chat) for chat in together))
            middle = time.monotonic()
            for chat in alone:
                await stream_chat(http, chat)
            end = time.monotonic()
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
    return middle - start, end - middle


async def _watch(http: httpx.AsyncClient, view: DemoView) -> None:
    while True:
        with contextlib.suppress(httpx.HTTPError):
            slots = (await http.get("/slots")).raise_for_status().json()
            view.cells_used = sum(slot["n_cells"] for slot in slots)
        view.refresh()
        await asyncio.sleep(POLL_S)


def _print_times(console: Console, together_s: float, alone_s: float) -> None:
    console.print(
        f"\ntogether {together_s:.1f} s, one after another {alone_s:.1f} s", highlight=False
    )


def _verdict(console: Console, together: list[Chat], alone: list[Chat]) -> int:
    for chat in [*together, *alone]:
        if chat.error:
            console.print(f"{chat.name}: {chat.error}", markup=False)
    completed = sum(chat.num_tokens == NUM_TOKENS for chat in together)
    identical = sum(
        a.num_tokens > 0 and a.text == b.text for a, b in zip(together, alone, strict=True)
    )
    parks = sum(chat.num_parks for chat in together)
    count = len(together)
    console.print(f"completed {completed}/{count}", highlight=False)
    console.print(f"parks {parks}", highlight=False)
    console.print(f"identical to solo {identical}/{count}", highlight=False)
    return 0 if completed == identical == count and parks else 1
