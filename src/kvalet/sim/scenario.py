"""What a run is of, besides its seed: load, pool and policies. A grid is every combination."""

from dataclasses import dataclass, field, replace
from typing import Final

from kvalet.core.config import (
    CopyConfig,
    MemoryConfig,
    PreemptionConfig,
    SchedulerConfig,
    SlotConfig,
    StepConfig,
)
from kvalet.core.plan import pages_for
from kvalet.settings import Choice, integer, number, setting, settings_of, values_of
from kvalet.sim.workloads import ARRIVALS, WORKLOADS


@dataclass(frozen=True, slots=True)
class Scenario:
    """The groups are those of `kvalet serve`."""

    workload: str = setting(
        "--workload NAME",
        "",
        Choice(*WORKLOADS),
        "measured",
        f"how long chats are: {', '.join(WORKLOADS)}",
    )
    arrivals: str = setting(
        "--arrivals NAME",
        "",
        Choice(*ARRIVALS),
        "together",
        f"when they come: {', '.join(ARRIVALS)}",
    )
    chats: int = setting("--chats N", "", integer(1), 8, "conversations")
    tokens: int = setting("--tokens N", "", integer(1), 700, "of a typical answer")
    gap: float = setting(
        "--gap SECONDS", "", number(0.001, 1e6), 2.0, "between arrivals, unless together"
    )
    priorities: int = setting(
        "--priorities N",
        "",
        integer(1, 100),
        1,
        "of the chats, by turns: 0, 1, ... up to N - 1; higher is kept longer and enters first",
    )
    is_trace: bool = False  # `workload` is the name of a file
    ctx_size: int = setting("-c, --ctx-size CELLS", "", integer(64), 2048, "of the pool")
    slots: SlotConfig = field(default_factory=SlotConfig)
    steps: StepConfig = field(default_factory=StepConfig)
    preemption: PreemptionConfig = field(default_factory=PreemptionConfig)
    lookahead: int | None = setting(
        "--lookahead STEPS",
        "",
        integer(1),
        None,
        "that the trigger looks ahead",
        shown="as serve has it",
    )
    copies: CopyConfig = field(default_factory=CopyConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    @property
    def num_pages(self) -> int:
        return pages_for(self.ctx_size)

    @property
    def load(self) -> tuple[object, ...]:
        """What chats ask for and the pool they ask it of; the rest is how it is shared."""
        values = values_of(self)
        return tuple(values[name] for name in LOAD)

    def values(self) -> dict[str, object]:
        """By the names of `SETTINGS`."""
        values = values_of(self)
        return {item.name: values[item.name] for item in SETTINGS}

    def scheduler_config(self, page_bytes: int, num_requests: int) -> SchedulerConfig:
        return SchedulerConfig(
            n_ctx=self.ctx_size,
            slots=replace(self.slots, max_queue=num_requests),
            steps=self.steps,
            preemption=self.preemption,
            host_budget=self.memory.budget(page_bytes),
            lookahead_steps=self.lookahead or self.copies.lookahead_steps,
            mirror=self.copies.mirror,
        )


# What may be asked for: not the test knobs, nor how many wait for a slot, since all may.
SETTINGS: Final = tuple(
    item for item in settings_of(Scenario) if item.flags and item.name != "max_queue"
)
# What a trace says itself.
DRAWN: Final = ("workload", "arrivals", "chats", "tokens", "gap", "priorities")
LOAD: Final = (*DRAWN, "ctx_size", "parallel")
