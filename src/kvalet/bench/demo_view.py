"""What the demo shows: a live table in a terminal, a line per event elsewhere.

Reads the chats and the pool's use; changes neither.
"""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvalet.bench.chats import Chat, ChatState
from kvalet.bench.figures import first_difference

_STYLES = {
    ChatState.WAITING: "dim",
    ChatState.RUNNING: "green",
    ChatState.PARKED: "bold yellow",
    ChatState.DONE: "cyan",
    ChatState.FAILED: "bold red",
}


_COLUMNS = (
    ("chat", 8),
    ("state", 7),
    ("", 14),
    ("tokens", 7),
    ("parked", 15),
    ("then alone", 17),
)


class DemoView:
    def __init__(
        self,
        console: Console,
        together: list[Chat],
        alone: list[Chat],
        num_tokens: int,
        pool_cells: int,
    ) -> None:
        self.cells_used = 0
        self._console = console
        self._together = together
        self._alone = alone
        self._num_tokens = num_tokens
        self._pool_cells = pool_cells
        self._begun = time.monotonic()
        self._told: dict[int, ChatState] = {}
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refresh()
        self._live.stop()

    def refresh(self) -> None:
        if self._console.is_terminal:
            self._live.refresh()
        else:
            self._tell()

    def _tell(self) -> None:
        """A line for each chat whose state changed."""
        for how, chats in (("together", self._together), ("alone", self._alone)):
            for chat in chats:
                if self._told.get(id(chat), ChatState.WAITING) is chat.state:
                    continue
                self._told[id(chat)] = chat.state
                done = f"{_tokens(chat)}/{self._num_tokens} tokens"
                seconds = time.monotonic() - self._begun
                line = f"{seconds:6.1f} s  {chat.name} ({how}): {chat.state.value}, {done}"
                self._console.print(line, highlight=False)

    def _render(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for title, width in _COLUMNS:
            justify: JustifyMethod = "right" if title == "tokens" else "left"
            table.add_column(title, justify=justify, min_width=width, no_wrap=True)
        for chat, solo in zip(self._together, self._alone, strict=True):
            table.add_row(
                chat.name,
                Text(chat.state.value, _STYLES[chat.state]),
                ProgressBar(self._num_tokens, _tokens(chat), width=14),
                f"{_tokens(chat)}/{self._num_tokens}",
                _pauses(chat),
                self._comparison(chat, solo),
            )
        return Group(table, "", self._pool())

    def _pool(self) -> RenderableType:
        line = Table.grid(padding=(0, 2, 0, 0))
        cells = f"{self.cells_used:,} of {self._pool_cells:,} cells used"
        seconds = f"{time.monotonic() - self._begun:.0f} s"
        line.add_row(
            "pool", ProgressBar(self._pool_cells, self.cells_used, width=30), cells, seconds
        )
        return line

    def _comparison(self, chat: Chat, solo: Chat) -> Text:
        if solo.state is not ChatState.DONE:
            done = f" {_tokens(solo)}/{self._num_tokens}" if solo.num_pieces else ""
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
