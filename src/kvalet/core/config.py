"""What the scheduler is told once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    num_slots: int
    n_ctx: int  # cells; what every slot is told
    batch_size: int = 512  # tokens of a step; at least num_slots
    max_queue: int = 128
    decode_chunk: int | None = None  # prefill tokens of a step with decoders; None: measured
    prefill_stretch: float = 2.0  # how much longer such a step may take than one without
    lookahead_steps: int = 1  # 1 with synchronous copies (SPEC P1)
    preempt: bool = True  # False: a sequence whose page cannot be had ends with an error
    trigger: str = "lookahead"  # or "watermark"
    high_percent: int = 94  # of the pool, for the watermark trigger
    low_percent: int = 80
    victim_policy: str | None = None  # None: the trigger's own
    entry_order: str = "head"  # or "pass"
    rotate_s: float = 2.0  # how long a head waits before an endless resident makes way
    context_shift: bool = False  # sequences shift at n_ctx instead of ending there
    starved_after: int = 3  # parks after which a sequence is passed over while others exist
    host_budget_pages: int | None = None  # None: no limit
    preempt_every: int = 0  # test knob: park every N generated tokens; 0: off
    planner: bool = True  # test knob: False leaves the lookahead out, so that grants run short

    @property
    def victims(self) -> str:
        own = "youngest" if self.trigger == "watermark" else "smallest"
        return self.victim_policy or own
