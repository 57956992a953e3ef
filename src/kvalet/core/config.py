"""What the scheduler is told once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    num_slots: int
    n_ctx: int  # cells; what every slot is told
    batch_size: int = 512  # tokens of a step; at least num_slots
    max_queue: int = 128
    decode_chunk: int = 64  # prefill tokens of a step in which somebody decodes
    lookahead_steps: int = 1  # 1 with synchronous copies (SPEC P1)
    victim_policy: str = "smallest"
    starved_after: int = 3  # parks after which a sequence is passed over while others exist
    host_budget_pages: int | None = None  # None: no limit
    preempt_every: int = 0  # test knob: park every N generated tokens; 0: off
    planner: bool = True  # test knob: False leaves the lookahead out, so that grants run short
