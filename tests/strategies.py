"""Random loads, pools, budgets and faults for the property tests."""

from dataclasses import dataclass

from hypothesis import strategies as st

from kvalet.core.plan import PAGE_CELLS
from kvalet.core.policy import VICTIM_POLICIES


@dataclass(frozen=True)
class Job:
    num_prompt: int
    max_new_tokens: int
    arrives_at: int  # step
    shares: int  # whole pages of a prefix common to all that share
    priority: int
    cache_prompt: bool
    cancel_at: int | None


@dataclass(frozen=True)
class Load:
    num_pages: int
    num_slots: int
    jobs: tuple[Job, ...]
    batch_size: int
    decode_chunk: int
    budget: int | None
    policy: str
    preempt_every: int
    planner: bool
    transfer_steps: int
    fault_every: int  # every n-th copy fails; 0: none
    trigger: str
    entry_order: str
    context_shift: bool
    park_at: int | None  # step at which slot 0 is parked on request, for 20 steps
    disk: int = 0
    cache: int | None = 0
    mirror: bool = False


@st.composite
def loads(draw: st.DrawFn) -> Load:
    num_pages = draw(st.integers(2, 20))
    cells = num_pages * PAGE_CELLS
    jobs = st.builds(
        Job,
        num_prompt=st.integers(1, cells - 1),
        max_new_tokens=st.integers(1, cells),
        arrives_at=st.integers(0, 60),
        shares=st.integers(0, 3),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        cache_prompt=st.sampled_from([True, True, True, False]),
        cancel_at=st.sampled_from([None, None, None, 5, 40]),
    )
    num_slots = draw(st.integers(1, 6))
    return Load(
        num_pages=num_pages,
        num_slots=num_slots,
        jobs=tuple(draw(st.lists(jobs, min_size=1, max_size=8))),
        batch_size=draw(st.sampled_from([8, 33, 64, 512])),
        decode_chunk=draw(st.sampled_from([16, 64])),
        budget=draw(st.sampled_from([None, None, 0, 1, 5, 12])),
        policy=draw(st.sampled_from(sorted(VICTIM_POLICIES))),
        preempt_every=draw(st.sampled_from([0, 0, 0, 3, 8])),
        planner=draw(st.sampled_from([True, True, True, False])),
        transfer_steps=draw(st.sampled_from([0, 0, 1, 3])),
        fault_every=draw(st.sampled_from([0, 0, 0, 3, 7])),
        trigger=draw(st.sampled_from(["lookahead", "lookahead", "watermark"])),
        entry_order=draw(st.sampled_from(["head", "parked", "pass"])),
        context_shift=draw(st.sampled_from([False, False, False, True])),
        park_at=draw(st.sampled_from([None, None, 7, 30])),
        disk=draw(st.sampled_from([0, 0, 6, 40])),
        cache=draw(st.sampled_from([0, 0, 3, 10, None])),
        mirror=draw(st.booleans()),
    )
