"""What a step and a copied page cost in seconds. Knows nothing of sequences or of time passing."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from kvalet.core.work import StepWork
from kvalet.errors import ConfigError
from kvalet.sim.checked import EXACTLY, AtLeastOne, Seconds, parse


def graph_rows(num_rows: int) -> int:
    """Rows that are computed for so many: graphs come in certain widths (`engine/ggml/graphs.py`,
    `bucket`)."""
    step = 1 if num_rows <= 8 else 8 if num_rows <= 64 else 32
    return -(-num_rows // step) * step


@dataclass(frozen=True, slots=True)
class CostModel:
    """Linear in the rows of a step's graph, in those whose logits are computed, and in the cells
    that rows see.

    The defaults are SmolLM2-135M-Instruct Q4_1 on two virtual cores with AVX-512, fitted to 13,266
    recorded steps: docs/lab-log.md, "The simulator's costs", has the commands. A page takes long
    since the copier shares two cores with the graph; `prefill_cell_s`, too small for that record,
    is of prompts of 1,460 tokens."""

    __pydantic_config__: ClassVar[ConfigDict] = EXACTLY

    step_s: Seconds = 3.1e-3  # in the graph, however many rows
    row_s: Seconds = 3.15e-3
    draw_s: Seconds = 1.7e-3  # further, of a row whose logits are computed
    decode_cell_s: Seconds = 1.4e-6  # per row of a chat that generates and cell that it sees
    prefill_cell_s: Seconds = 0.1e-6  # the same of prompts and replays
    beside_share: Seconds = 0.85  # of the copier's busy time, added to the step beside it
    host_s: Seconds = 0.9e-3  # of a step outside the graph
    host_row_s: Seconds = 0.06e-3  # per sequence that takes part
    page_out_s: Seconds = 1.6e-3
    page_in_s: Seconds = 0.29e-3
    page_bytes: AtLeastOne = 737_280
    source: str = "SmolLM2-135M-Instruct Q4_1, 2 virtual cores with AVX-512"

    def compute_s(self, work: StepWork) -> float:
        """In the graph, with no copy beside it."""
        return (
            self.step_s
            + graph_rows(work.num_rows) * self.row_s
            + graph_rows(work.draws) * self.draw_s
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
