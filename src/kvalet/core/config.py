"""What the scheduler is told once, and what may therefore be asked of it."""

from dataclasses import dataclass

from kvalet.core.store import HostBudget
from kvalet.errors import ContextExceeded, RequestError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    num_slots: int
    n_ctx: int  # cells; what every slot is told
    batch_size: int = 512  # tokens of a step; at least num_slots
    max_queue: int = 128
    decode_chunk: int | None = None  # prefill tokens of a step with decoders; None: measured
    prefill_stretch: float = 2.0  # how much longer such a step may take than one without
    lookahead_steps: int = 1  # 8 where copies run beside steps (behaviour P1)
    replay_margin: int = 0  # steps that there must be room for after a replay
    preempt: bool = True  # False: a sequence whose page cannot be had ends with an error
    trigger: str = "lookahead"  # or "watermark"
    high_percent: int = 94  # of the pool, for the watermark trigger
    low_percent: int = 80
    victim_policy: str | None = None  # None: the trigger's own
    entry_order: str = "head"  # or "parked" or "pass"
    rotate_s: float = 2.0  # how long a head waits before an endless resident makes way
    context_shift: bool = False  # sequences shift at n_ctx instead of ending there
    starved_after: int = 3  # parks after which a sequence is passed over while others exist
    host_budget_pages: int | None = None  # RAM for parked sequences; None: no limit
    disk_budget_pages: int | None = 0  # disk for those that do not fit there
    cache_budget_pages: int | None = 0  # RAM for pages outside the pool that nobody needs now
    mirror: bool = False  # copy pages to the host ahead of a park
    preempt_every: int = 0  # test knob: park every N generated tokens; 0: off
    planner: bool = True  # test knob: False leaves the lookahead out, so that grants run short

    @property
    def host_budget(self) -> HostBudget:
        return HostBudget(self.host_budget_pages, self.disk_budget_pages, self.cache_budget_pages)

    @property
    def victims(self) -> str:
        own = "youngest" if self.trigger == "watermark" else "smallest"
        return self.victim_policy or own

    def validate(self, prompt: tuple[int, ...], id_slot: int | None) -> None:
        """Raises RequestError or ContextExceeded for what can never be served."""
        if not prompt:
            raise RequestError("the prompt has no tokens", "prompt")
        if len(prompt) >= self.n_ctx:
            raise ContextExceeded(len(prompt), self.n_ctx)
        if id_slot is not None and not 0 <= id_slot < self.num_slots:
            raise RequestError(f"there is no slot {id_slot}", "id_slot")
