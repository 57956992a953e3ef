"""A scenario: everything that a play depends on, as data that goes into its trace.

Steps count from 0. Prompts are given by formula (`make_prompt`), not by their tokens.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Option: TypeAlias = bool | int | float | str | None
Deed: TypeAlias = Literal["park", "resume", "save", "restore", "erase", "damage"]


@dataclass(frozen=True)
class Arrival:
    """A request of `choices` sequences. Its prompt: `num_shared` tokens of prefix `prefix`, then
    `num_prompt` of its own."""

    step: int
    num_prompt: int
    salt: int
    num_new: int | None
    prefix: int = 0
    num_shared: int = 0
    ends_at: int | None = None  # tokens after which it ends by itself
    choices: int = 1
    priority: int = 0
    seed: int = 0
    temperature: float = 0.0
    repeat_penalty: float = 1.0
    cache_prompt: bool = True
    id_slot: int | None = None
    num_keep: int = 0
    num_discard: int = 0


@dataclass(frozen=True)
class Order:
    """What an operator asks of a slot. `damage` breaks the state file at `path`."""

    step: int
    do: Deed
    slot: int
    path: str = ""
    timeout_s: float = 1e6


@dataclass(frozen=True)
class Cancel:
    """The first sequence seen in `state` from `step` on is cancelled."""

    step: int
    state: str


@dataclass(frozen=True)
class FaultRules:
    """Every so-many-th of its kind goes wrong; 0: none. From `until` on nothing does."""

    transfer: int = 0
    restore: int = 0  # copies in
    compute: int = 0
    no_room: int = 0
    execute: int = 0  # whole steps
    until: int = 1 << 30


@dataclass(frozen=True)
class Scenario:
    name: str
    num_pages: int
    options: dict[str, Option]  # fields of SchedulerConfig
    arrivals: tuple[Arrival, ...]
    orders: tuple[Order, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    faults: FaultRules = field(default_factory=FaultRules)
    transfer_steps: int = 0
    step_s: float = 0.05
    max_steps: int = 700

    @property
    def last_step(self) -> int:
        """In which something comes from outside."""
        arrivals = (arrival.step for arrival in self.arrivals)
        return max((*arrivals, *(order.step for order in self.orders)))
