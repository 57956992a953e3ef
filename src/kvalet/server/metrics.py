"""/metrics: a snapshot of the engine thread in Prometheus' text format, under llama.cpp's names.

Nothing is counted here: a scrape shows what the engine thread knew at a step boundary.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from kvalet.runtime.messages import Histogram, Snapshot

PREFIX = "llamacpp:"

# A name that is missing here is shown all the same, with its name as its help.
_HELP = {
    "prompt_tokens_total": "Prompt tokens computed.",
    "prompt_seconds_total": "Time spent on prompts, without pauses.",
    "tokens_predicted_total": "Tokens generated.",
    "tokens_predicted_seconds_total": "Time spent generating, without pauses.",
    "prompt_tokens_seconds": "Average prompt tokens per second.",
    "predicted_tokens_seconds": "Average generated tokens per second.",
    "requests_processing": "Requests that take part in steps.",
    "requests_deferred": "Requests that wait for a slot.",
    "requests_preempted": "Requests that are parked.",
    "requests_waiting": "Requests in a slot that wait for room, parked ones included.",
    "n_decode_total": "Steps that computed tokens.",
    "n_busy_slots_total": "Sequences that took part, summed over steps.",
    "n_busy_slots_per_decode": "Average number of sequences that took part in a step.",
    "n_preempt_total": "Parks.",
    "n_resume_total": "Resumes.",
    "n_preempt_swap_total": "Parks that copied pages to the host.",
    "n_preempt_recompute_total": "Parks that dropped pages, to be computed again.",
    "n_recompute_tokens_total": "Tokens computed again.",
    "n_preempt_fail_total": "Copies that failed.",
    "preempt_bytes_out_total": "Bytes copied to the host.",
    "preempt_bytes_in_total": "Bytes copied back from the host.",
    "parked_pages_total": "Pages of chats that were parked by copying.",
    "parked_pages_mirrored_total": "Of those: on the host already, copied ahead of the park.",
    "mirror_bytes_total": "Bytes copied to the host ahead of parks.",
    "copy_seconds_total": "Time in which the copier was busy.",
    "n_steps_beside_copy_total": "Steps computed while a copy was under way.",
    "n_waits_for_copy_total": "Steps in which a chat waited for a copy.",
    "preempt_ram_bytes": "Host memory that parked requests hold.",
    "preempt_disk_bytes": "Disk that parked requests hold.",
    "host_cache_bytes": "Host memory that cached pages hold.",
    "host_store_bytes": "Host memory that pages outside the pool hold, parked or cached.",
    "prefix_pages_pool_total": "Pages of prompts found in the pool.",
    "prefix_pages_host_total": "Pages of prompts found in the host store.",
    "prefix_pages_missed_total": "Full pages of prompts that were computed.",
    "kv_cells_total": "KV cells of the pool.",
    "kv_cells_used": "KV cells in pages that a request holds.",
    "kv_cells_shared": "KV cells in pages that several requests hold.",
    "kv_cells_cached": "KV cells in pages kept for their content alone.",
    "step_seconds_total": "Time spent in steps, from planning to delivery.",
    "compute_seconds_total": "Of the time spent in steps: in the device's graph executor.",
    "queue_seconds": "From the arrival of a request to its first step.",
    "time_to_first_token_seconds": "From the arrival of a request to its first token.",
    "inter_token_gap_seconds": "From one token of a request to its next, pauses included.",
    "parked_seconds": "From a park to its end.",
}  # fmt: skip


def render_metrics(snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @override
    def collect(self) -> Iterator[Metric]:
        counters = self._snapshot.counters
        for name, value in counters.items():
            yield CounterMetricFamily(PREFIX + name, _HELP.get(name, name), value=value)
        for name, value in {**self._snapshot.gauges, **_averages(counters)}.items():
            yield GaugeMetricFamily(PREFIX + name, _HELP.get(name, name), value=value)
        for name, histogram in self._snapshot.histograms.items():
            buckets = list(_cumulative(histogram))
            yield HistogramMetricFamily(
                PREFIX + name, _HELP.get(name, name), buckets=buckets, sum_value=histogram.sum
            )


def _cumulative(histogram: Histogram) -> Iterator[tuple[str, float]]:
    """Prometheus' buckets: how many values were at most each bound."""
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    yield from zip(bounds, accumulate(histogram.counts), strict=True)


def _averages(counters: Mapping[str, float]) -> dict[str, float]:
    """llama.cpp's averages since the start."""

    def ratio(amount: str, unit: str) -> float:
        divisor = counters.get(unit, 0.0)
        return counters.get(amount, 0.0) / divisor if divisor else 0.0

    return {
        "prompt_tokens_seconds": ratio("prompt_tokens_total", "prompt_seconds_total"),
        "predicted_tokens_seconds": ratio(
            "tokens_predicted_total", "tokens_predicted_seconds_total"
        ),
        "n_busy_slots_per_decode": ratio("n_busy_slots_total", "n_decode_total"),
    }
