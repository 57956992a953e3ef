"""A run in a few numbers, and many runs in means with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from kvalet.core.plan import PAGE_CELLS
from kvalet.sim.run import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. A wait is from a park until the chat generates again; a queue, from arrival until
    it first comes in."""

    requests: int
    completed: int
    makespan_s: float  # first arrival to last end
    mean_completion_s: float  # arrival to end
    p95_completion_s: float
    longest_wait_s: float
    longest_queue_s: float
    top_queue_s: float  # the longest of the highest priority
    parks: int
    cells_copied: int  # out, in and ahead of need
    tokens_recomputed: int
    tokens_cached: int  # of prompts, found by name
    utilisation: float  # pages held, of the pool's, over time
    tokens_per_s: float  # generated, all chats together


def figures_of(run: Run) -> Figures:
    counters, timelines = run.counters, run.timelines
    top = max(timeline.priority for timeline in timelines)
    completions = [timeline.completion_s for timeline in timelines]
    makespan_s = run.end_s - run.start_s
    num_pages = counters.pages_out + counters.pages_in + counters.pages_mirrored
    return Figures(
        requests=len(timelines),
        completed=sum(timeline.is_complete for timeline in timelines),
        makespan_s=makespan_s,
        mean_completion_s=fmean(completions),
        p95_completion_s=float(np.percentile(completions, 95, method="inverted_cdf")),
        longest_wait_s=max(timeline.longest_wait_s for timeline in timelines),
        longest_queue_s=max(timeline.queued_s for timeline in timelines),
        top_queue_s=max(item.queued_s for item in timelines if item.priority == top),
        parks=counters.n_preempt,
        cells_copied=num_pages * PAGE_CELLS,
        tokens_recomputed=counters.n_recompute_tokens,
        tokens_cached=run.num_cached,
        utilisation=run.page_seconds / (makespan_s * run.num_pages),
        tokens_per_s=sum(timeline.num_output for timeline in timelines) / makespan_s,
    )


NAMES = tuple(item.name for item in fields(Figures))


@dataclass(frozen=True, slots=True)
class Spread:
    mean: float
    sd: float  # between seeds

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two means over the same loads, seed by seed, with its standard error: the estimator of a
    ratio and its variance from paired samples (Cochran, Sampling Techniques, 1977, section 6.3)."""

    value: float
    se: float


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Ratio | None:
    """Mean of `values` as a multiple of that of `baseline`. None where the baseline has none."""
    base = fmean(baseline)
    if not base:
        return None
    multiple = fmean(values) / base
    differences = [value - multiple * other for value, other in zip(values, baseline, strict=True)]
    error = stdev(differences) / sqrt(len(differences)) / base if len(differences) > 1 else 0.0
    return Ratio(multiple, error)
