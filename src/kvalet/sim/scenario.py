"""What a run is of, besides its seed: load, pool and policies. A grid is every combination."""

from dataclasses import asdict, dataclass
from typing import Final

from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import PAGE_CELLS

MIB = 1 << 20
UNLIMITED = -1
LOOKAHEAD_STEPS = 8  # as `kvalet serve` has it while copies run beside steps, else 1
LOAD_FIELDS: Final = ("workload", "arrivals", "chats", "tokens", "gap", "ctx_size", "parallel")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Fields named like a flag of `kvalet serve` mean the same."""

    workload: str = "measured"
    arrivals: str = "together"
    chats: int = 8
    tokens: int = 700
    gap: float = 2.0  # seconds
    ctx_size: int = 2048
    parallel: int = 4
    preempt_trigger: str = "lookahead"
    lookahead: int | None = None  # steps; None: as `kvalet serve` has it
    preempt_replay_margin: int = 32
    preempt_ram: int = 8192
    preempt_policy: str = "smallest"
    preempt_resume: str = "head"
    preempt_high: int = 94
    preempt_low: int = 80
    preempt_starved: int = 3
    preempt_async: bool = True
    preempt_mirror: bool = True
    cache_ram: int = 8192

    @property
    def num_pages(self) -> int:
        return -(-self.ctx_size // PAGE_CELLS)

    @property
    def load(self) -> tuple[object, ...]:
        """What chats ask for and the pool they ask it of; the rest is how it is shared."""
        return tuple(asdict(self)[name] for name in LOAD_FIELDS)

    def scheduler_config(self, page_bytes: int, num_requests: int) -> SchedulerConfig:
        return SchedulerConfig(
            num_slots=self.parallel,
            n_ctx=self.ctx_size,
            max_queue=num_requests,
            lookahead_steps=self.lookahead or (LOOKAHEAD_STEPS if self.preempt_async else 1),
            replay_margin=self.preempt_replay_margin,
            trigger=self.preempt_trigger,
            high_percent=self.preempt_high,
            low_percent=self.preempt_low,
            victim_policy=self.preempt_policy,
            entry_order=self.preempt_resume,
            starved_after=self.preempt_starved,
            host_budget_pages=_pages(self.preempt_ram, page_bytes),
            cache_budget_pages=_pages(self.cache_ram, page_bytes),
            mirror=self.preempt_mirror and self.preempt_async,
        )


def _pages(budget_mib: int, page_bytes: int) -> int | None:
    return None if budget_mib == UNLIMITED else budget_mib * MIB // page_bytes
