"""The main job, shown: four chats that do not fit into one pool, all finished, each as it is alone.

Starts a real server, sends the chats together, then one by one with the prefix cache off, and
compares the texts: a live table in a terminal, a line per event elsewhere. The last lines of its
output are for scripts.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvalet.bench.chats import TIMEOUT, Chat, ChatState, stream_chat
from kvalet.bench.figures import first_difference
from kvalet.bench.process import ServerProcess
from kvalet.bench.prompts import pressing_chats

POOL_CELLS = 2048
NUM_TOKENS = 700
FLAGS = ("--ctx-size", str(POOL_CELLS), "--parallel", "4")
POLL_S = 0.25

STYLES = {
    ChatState.WAITING: "dim",
    ChatState.RUNNING: "green",
    ChatState.PARKED: "bold yellow",
    ChatState.DONE: "cyan",
    ChatState.FAILED: "bold red",
}
COLUMNS = {"chat": 8, "state": 7, "": 14, "tokens": 7, "parked": 15, "then alone": 17}


def run(console: Console) -> int:
    """0 if some chat was parked and all are complete and identical to their solo runs, else 1."""
    console.print(f"[bold]kvalet serve {' '.join(FLAGS)}[/]", highlight=False)
    console.print(
        f"four chats at once, each of about 160 prompt tokens and {NUM_TOKENS} to come;\n"
        "then each of them alone\n",
        highlight=False,
    )
    bodies = pressing_chats(NUM_TOKENS)
    together = [Chat(name, body) for name, body in bodies]
    alone = [Chat(name, {**body, "cache_prompt": False}) for name, body in bodies]
    with ServerProcess(*FLAGS) as server:
        view = View(console, together, alone)
        with Live(console=console, auto_refresh=False, get_renderable=view.render) as live:
            together_s, alone_s = asyncio.run(_play(server.url, view, live))
    times = f"together {together_s:.1f} s, one after another {alone_s:.1f} s"
    console.print(f"\n{times}", highlight=False)
    return _verdict(console, together, alone)


def _verdict(console: Console, together: list[Chat], alone: list[Chat]) -> int:
    for chat in [*together, *alone]:
        if chat.error:
            console.print(f"{chat.name}: {chat.error}", markup=False)
    completed = sum(chat.num_tokens == NUM_TOKENS for chat in together)
    identical = sum(
        a.num_tokens > 0 and a.text == b.text for a, b in zip(together, alone, strict=True)
    )
    parks, count = sum(chat.num_parks for chat in together), len(together)
    told = (f"completed {completed}/{count}", f"parks {parks}")
    console.print(*told, f"identical to solo {identical}/{count}", sep="\n", highlight=False)
    return 0 if completed == identical == count and parks else 1


@dataclass
class View:
    """Reads the chats and the pool's use; changes neither."""

    console: Console
    together: list[Chat]
    alone: list[Chat]
    cells_used: int = 0
    begun: float = field(default_factory=time.monotonic)
    told: dict[int, ChatState] = field(default_factory=dict[int, ChatState])

    def refresh(self, live: Live) -> None:
        if self.console.is_terminal:
            live.refresh()
        else:
            for line in self._news():
                self.console.print(line, highlight=False)

    def _news(self) -> Iterator[str]:
        """A line for each chat whose state changed."""
        for how, chats in (("together", self.together), ("alone", self.alone)):
            for chat in chats:
                if self.told.get(id(chat), ChatState.WAITING) is not chat.state:
                    self.told[id(chat)] = chat.state
                    name = f"{self._seconds():6.1f} s  {chat.name} ({how})"
                    yield f"{name}: {chat.state.value}, {_tokens(chat)}/{NUM_TOKENS} tokens"

    def _seconds(self) -> float:
        return time.monotonic() - self.begun

    def render(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for title, width in COLUMNS.items():
            justify: JustifyMethod = "right" if title == "tokens" else "left"
            table.add_column(title, justify=justify, min_width=width, no_wrap=True)
        for chat, solo in zip(self.together, self.alone, strict=True):
            table.add_row(
                chat.name,
                Text(chat.state.value, STYLES[chat.state]),
                ProgressBar(NUM_TOKENS, _tokens(chat), width=14),
                f"{_tokens(chat)}/{NUM_TOKENS}",
                _pauses(chat),
                _comparison(chat, solo),
            )
        pool = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(POOL_CELLS, self.cells_used, width=30)
        cells = f"{self.cells_used:,} of {POOL_CELLS:,} cells used"
        pool.add_row("pool", bar, cells, f"{self._seconds():.0f} s")
        return Group(table, "", pool)


def _comparison(chat: Chat, solo: Chat) -> Text:
    if solo.state is not ChatState.DONE:
        done = f" {_tokens(solo)}/{NUM_TOKENS}" if solo.num_pieces else ""
        return Text(solo.state.value + done, "dim")
    if solo.text == chat.text:
        return Text("identical", "bold green")
    return Text(f"differs from character {first_difference(chat.text, solo.text)}", "bold red")


def _tokens(chat: Chat) -> int:
    return chat.num_tokens or chat.num_pieces


def _pauses(chat: Chat) -> str:
    if not chat.num_parks:
        return ""
    times = "once" if chat.num_parks == 1 else f"{chat.num_parks} times"
    return f"{times}, {chat.parked_s():.1f} s"


async def _play(url: str, view: View, live: Live) -> tuple[float, float]:
    """Seconds that the chats took together, and one after another."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        watch = asyncio.create_task(_watch(http, view, live))
        start = time.monotonic()
        await asyncio.gather(*(stream_chat(http, chat) for chat in view.together))
        middle = time.monotonic()
        for chat in view.alone:
            await stream_chat(http, chat)
        end = time.monotonic()
        watch.cancel()
        view.refresh(live)
    return middle - start, end - middle


async def _watch(http: httpx.AsyncClient, view: View, live: Live) -> None:
    while True:
        with contextlib.suppress(httpx.HTTPError):
            slots = (await http.get("/slots")).raise_for_status().json()
            view.cells_used = sum(slot["n_cells"] for slot in slots)
        view.refresh(live)
        await asyncio.sleep(POLL_S)
