"""The engine thread's state as data (behaviour M1, M2). Ratios and rates are left to the reader."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from kvalet.core.plan import PAGE_CELLS, SeqId, SlotId, Tier
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import RESIDENT, WAITING, ParkMode, Sequence, Status
from kvalet.runtime.messages import SlotView, Snapshot
from kvalet.runtime.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Takes them. `parked_s`: how long a live sequence has been parked in all."""

    scheduler: Scheduler
    metrics: Metrics
    page_bytes: int
    parked_s: Callable[[SeqId], float]

    def take(self) -> Snapshot:
        return Snapshot(
            slots=tuple(self.slot(SlotId(slot)) for slot in range(len(self.scheduler.slots))),
            gauges=self._gauges(),
            counters=self._counters(),
            histograms=self.metrics.histograms(),
        )

    def slot(self, slot: SlotId) -> SlotView:
        seq = self.scheduler.slots[slot]
        if seq is None:
            return self._idle(slot)
        num_in_host = self.scheduler.num_in_host(seq)
        return _view(slot, seq, self.parked_s(seq.seq_id), num_in_host * PAGE_CELLS)

    def _idle(self, slot: SlotId) -> SlotView:
        if slot not in self.scheduler.kept_slots:
            return SlotView(slot)
        pages = self.scheduler.kept_pages(slot)
        is_on_disk = any(page.tier is Tier.DISK for page in pages)
        mode = ParkMode.of(Tier.DISK if is_on_disk else Tier.RAM)
        n_cells = len(pages) * PAGE_CELLS
        return SlotView(slot, is_held=True, preempt_mode=mode.value, n_cells_host=n_cells)

    def _gauges(self) -> dict[str, float]:
        pool = self.scheduler.pool
        seqs = [seq for seq in self.scheduler.slots if seq is not None]
        statuses = [seq.status for seq in seqs]
        store = self.scheduler.store
        return {
            "requests_processing": sum(status in RESIDENT for status in statuses),
            "requests_deferred": self.scheduler.num_queued,
            "requests_preempted": sum(_is_parked(seq) for seq in seqs),
            "requests_waiting": sum(status in WAITING for status in statuses),
            "kv_cells_total": pool.num_pages * PAGE_CELLS,
            "kv_cells_used": pool.num_referenced * PAGE_CELLS,
            "kv_cells_shared": pool.num_shared * PAGE_CELLS,
            "kv_cells_cached": pool.num_cached * PAGE_CELLS,
            "preempt_ram_bytes": store.num_pinned * self.page_bytes,
            "preempt_disk_bytes": store.num_on_disk * self.page_bytes,
            "host_cache_bytes": store.num_cached * self.page_bytes,
            "host_store_bytes": store.num_held * self.page_bytes,
        }

    def _counters(self) -> dict[str, float]:
        counters = asdict(self.scheduler.counters)
        moved = {name: counters.pop(f"pages_{name}") for name in ("out", "in", "mirrored")}
        return {
            **asdict(self.metrics.totals),
            **{f"{name}_total": count for name, count in counters.items()},
            "preempt_bytes_out_total": moved["out"] * self.page_bytes,
            "preempt_bytes_in_total": moved["in"] * self.page_bytes,
            "mirror_bytes_total": moved["mirrored"] * self.page_bytes,
        }


def _is_parked(seq: Sequence) -> bool:
    away = (Status.PREEMPTING, Status.PREEMPTED)
    return seq.park_mode is not None and seq.status in away


def _view(slot: SlotId, seq: Sequence, parked_s: float, n_cells_host: int) -> SlotView:
    return SlotView(
        slot=slot,
        state=seq.status.value,
        request_id=seq.request.request_id,
        is_processing=True,
        is_preempted=seq.park_mode is not None,
        num_prompt_tokens=seq.num_prompt,
        num_computed=seq.num_computed,
        num_generated=seq.num_generated,
        max_new_tokens=seq.request.max_new_tokens,
        n_cells=len(seq.table) * PAGE_CELLS,
        n_preempt=seq.num_preempts,
        n_recompute=seq.num_recomputed,
        parked_ms=parked_s * 1e3,
        sampling=seq.request.sampling,
        preempt_mode=None if seq.park_mode is None else seq.park_mode.value,
        is_held=seq.is_held,
        n_cells_host=n_cells_host,
    )
