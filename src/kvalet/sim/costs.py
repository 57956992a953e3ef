"""What a step and a copied page cost in seconds. Knows nothing of sequences or of time passing."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final

from pydantic import ConfigDict, TypeAdapter

from kvalet.core.work import StepWork
from kvalet.errors import ConfigError
from kvalet.sim.checked import EXACTLY, AtLeastOne, Seconds, parse

FIRST_ROWS: Final = 16  # of a step, that cost more each than those after them


def graph_rows(num_rows: int) -> int:
    """Rows that are computed for so many: graphs come in certain widths (`engine/ggml/graphs.py`,
    `bucket`)."""
    step = 1 if num_rows <= 8 else 8 if num_rows <= 64 else 32
    return -(-num_rows // step) * step


@dataclass(frozen=True, slots=True)
class CostModel:
    """Linear in the rows of a step's graph and in the cells that rows see.

    The defaults are SmolLM2-135M-Instruct Q4_1 on two virtual cores with AVX-512. From
    docs/lab-log.md: "A quiet machine", steps of 1 and 4 chats at a depth of about 500, 9.63 and
    24.11 ms in the graph, 10.55 and 25.94 ms in all; "The second turn of a chat", a prompt of 1,458
    tokens in 4,958 ms; "Pages and places" for a page's copy. The rest from attention over 2,000
    cells, 1.9 and 10 ms for 1 and 4 chats, and from steps beside copies, recorded in process."""

    __pydantic_config__: ClassVar[ConfigDict] = EXACTLY

    step_s: Seconds = 4.8e-3  # in the graph, however many rows
    row_s: Seconds = 4.3e-3  # each of the first 16
    further_row_s: Seconds = 3.0e-3
    decode_cell_s: Seconds = 1.1e-6  # per row of a chat that generates and cell that it sees
    prefill_cell_s: Seconds = 0.5e-6  # the same of prompts and replays
    beside_share: Seconds = 0.6  # of the copier's busy time, added to the step beside it
    host_s: Seconds = 0.6e-3  # of a step outside the graph
    host_row_s: Seconds = 0.3e-3  # per sequence that takes part
    page_out_s: Seconds = 0.12e-3
    page_in_s: Seconds = 0.08e-3
    page_bytes: AtLeastOne = 737_280
    source: str = "SmolLM2-135M-Instruct Q4_1, 2 virtual cores with AVX-512"

    def compute_s(self, work: StepWork) -> float:
        """In the graph, with no copy beside it."""
        rows = graph_rows(work.num_rows)
        return (
            self.step_s
            + min(rows, FIRST_ROWS) * self.row_s
            + max(rows - FIRST_ROWS, 0) * self.further_row_s
            + work.decode_depth * self.decode_cell_s
            + work.prefill_depth * self.prefill_cell_s
        )

    def outside_s(self, num_sequences: int) -> float:
        """Planning, sampling and delivery of a step."""
        return self.host_s + num_sequences * self.host_row_s

    def save(self, path: Path) -> None:
        """Raises ConfigError."""
        try:
            path.write_text(json.dumps(asdict(self), indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> "CostModel":
        """What a file leaves out has its default. Raises ConfigError, naming the field."""
        try:
            return parse(TypeAdapter(cls), path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
