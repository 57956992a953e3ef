"""What a step and a copied page cost in seconds. Knows nothing of sequences or of time passing."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from kvalet.core.work import StepWork
from kvalet.errors import ConfigError
from kvalet.sim.checked import EXACTLY, AtLeastOne, NonNegative, parse


@dataclass(frozen=True, slots=True)
class CostModel:
    """Linear in a step's rows and their depths. A row of a prompt is cheaper than one of a chat
    that generates, since weights are read once for many rows.

    The defaults are SmolLM2-135M-Instruct Q4_1 on two virtual cores with AVX-512 (docs/lab-log.md,
    "A quiet machine"): decode steps of 1 and 4 chats at a depth of about 500, 9.63 and 24.11 ms in
    the graph, 10.55 and 25.94 ms in all; attention over 2,000 cells 1.9 and 10 ms."""

    __pydantic_config__: ClassVar[ConfigDict] = EXACTLY

    step_s: NonNegative = 4.8e-3  # in the graph, however many rows
    decode_row_s: NonNegative = 4.3e-3
    decode_cell_s: NonNegative = 1.1e-6  # per row and cell that it sees
    prefill_row_s: NonNegative = 2.2e-3
    prefill_cell_s: NonNegative = 0.5e-6
    beside_share: NonNegative = 1.0  # of the copier's busy time, added to the step beside it
    host_s: NonNegative = 0.6e-3  # of a step outside the graph
    host_row_s: NonNegative = 0.3e-3  # per sequence that takes part
    page_out_s: NonNegative = 0.15e-3  # 720 KiB at about 5 GB/s
    page_in_s: NonNegative = 0.15e-3
    page_bytes: AtLeastOne = 737_280
    source: str = "SmolLM2-135M-Instruct Q4_1, 2 virtual cores with AVX-512"

    def compute_s(self, work: StepWork) -> float:
        """In the graph, with no copy beside it."""
        return (
            self.step_s
            + work.decode_rows * self.decode_row_s
            + work.decode_depth * self.decode_cell_s
            + work.prefill_rows * self.prefill_row_s
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
            return parse(TypeAdapter(cls), path.read_text())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
