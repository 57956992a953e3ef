"""Totals since the start, and the engine thread's state as a snapshot (SPEC M1, M2).

Names in a snapshot are those of /metrics without their prefix; ratios are left to the reader.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from kvalet.core.plan import PAGE_CELLS, SeqId, StepOutcome, StepPlan
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import RESIDENT, WAITING, Sequence, Status
from kvalet.runtime.messages import SlotView, Snapshot


@dataclass(slots=True)
class Totals:
    prompt_tokens_total: int = 0  # computed, of prompts that are complete
    prompt_seconds_total: float = 0.0
    tokens_predicted_total: int = 0
    tokens_predicted_seconds_total: float = 0.0
    n_decode_total: int = 0  # steps that computed tokens
    n_busy_slots_total: int = 0  # sequences that took part, summed over those steps
    step_seconds_total: float = 0.0  # planning to delivery
    compute_seconds_total: float = 0.0  # of those, in the device's graph executor

    def count_token(self, seq: Sequence, seconds: float) -> None:
        """A token was drawn for `seq`, not yet appended, in `seconds` without pauses."""
        self.tokens_predicted_total += 1
        if seq.num_generated:
            self.tokens_predicted_seconds_total += seconds
        else:
            self.prompt_tokens_total += seq.num_prompt - seq.num_cached
            self.prompt_seconds_total += seconds

    def count_step(self, plan: StepPlan, outcome: StepOutcome, seconds: float) -> None:
        if plan.grants:
            self.n_decode_total += 1
            self.n_busy_slots_total += len(plan.grants)
        self.step_seconds_total += seconds
        self.compute_seconds_total += outcome.compute_s


def take_snapshot(
    scheduler: Scheduler, totals: Totals, page_bytes: int, parked_s: Callable[[SeqId], float]
) -> Snapshot:
    """`parked_s`: how long a live sequence has been parked in all."""
    slots = enumerate(scheduler.slots)
    return Snapshot(
        slots=tuple(
            _idle(slot) if seq is None else _view(slot, seq, parked_s(seq.seq_id))
            for slot, seq in slots
        ),
        queued=scheduler.num_queued,
        gauges=_gauges(scheduler, page_bytes),
        counters=_counters(scheduler, totals, page_bytes),
    )


def _view(slot: int, seq: Sequence, parked_s: float) -> SlotView:
    return SlotView(
        slot=slot,
        state=seq.status.value,
        request_id=seq.label,
        is_processing=True,
        is_preempted=seq.is_announced,
        num_prompt_tokens=seq.num_prompt,
        num_computed=seq.num_computed,
        num_generated=seq.num_generated,
        max_new_tokens=seq.max_new_tokens,
        num_pages=len(seq.table),
        n_preempt=seq.num_preempts,
        n_recompute=seq.num_recomputed,
        parked_ms=parked_s * 1e3,
        sampling=seq.sampling,
    )


def _idle(slot: int) -> SlotView:
    return SlotView(
        slot=slot,
        state="idle",
        request_id=None,
        is_processing=False,
        is_preempted=False,
        num_prompt_tokens=0,
        num_computed=0,
        num_generated=0,
        max_new_tokens=None,
        num_pages=0,
        n_preempt=0,
        n_recompute=0,
        parked_ms=0.0,
        sampling=None,
    )


def _gauges(scheduler: Scheduler, page_bytes: int) -> dict[str, float]:
    pool = scheduler.pool
    statuses = [seq.status for seq in scheduler.slots if seq is not None]
    parked = (Status.PREEMPTING, Status.PREEMPTED)
    return {
        "requests_processing": sum(status in RESIDENT for status in statuses),
        "requests_deferred": scheduler.num_queued,
        "requests_preempted": sum(status in parked for status in statuses),
        "requests_waiting": sum(status in WAITING for status in statuses),
        "kv_cells_total": pool.num_pages * PAGE_CELLS,
        "kv_cells_used": pool.num_referenced * PAGE_CELLS,
        "kv_cells_shared": pool.num_shared * PAGE_CELLS,
        "kv_cells_cached": pool.num_cached * PAGE_CELLS,
        "preempt_ram_bytes": scheduler.store.num_held * page_bytes,
    }


def _counters(scheduler: Scheduler, totals: Totals, page_bytes: int) -> dict[str, float]:
    counters = asdict(scheduler.counters)
    pages_out, pages_in = counters.pop("pages_out"), counters.pop("pages_in")
    return {
        **asdict(totals),
        **{f"{name}_total": count for name, count in counters.items()},
        "preempt_bytes_out_total": pages_out * page_bytes,
        "preempt_bytes_in_total": pages_in * page_bytes,
    }
