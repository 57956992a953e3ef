"""What deciding costs: plan and commit of a step in which everybody decodes, pressure absent.

    PYTHONPATH=. python bench/plan.py

No model: the engine is the fake one with its arithmetic left out. The last line is JSON.
"""

import json
import statistics
import time

from tests.builders import make_scheduler, make_seq

from kvalet.core.plan import PAGE_CELLS, Sampled, StepOutcome

NUM_STEPS = 300
WARM_UP = 60
PAGES_EACH = 40


def plan_and_commit_ms(num_seqs: int) -> list[float]:
    """Milliseconds of each step, after a warm-up."""
    num_pages = num_seqs * PAGES_EACH
    scheduler = make_scheduler(num_pages, num_seqs, n_ctx=PAGES_EACH * PAGE_CELLS)
    for seq_id in range(num_seqs):
        scheduler.add(make_seq(seq_id, 200 + seq_id, 800))
    times: list[float] = []
    for step in range(NUM_STEPS):
        start = time.perf_counter()
        plan = scheduler.plan(float(step))
        planned = time.perf_counter()
        sampled = {grant.seq_id: (Sampled(5),) for grant in plan.grants if grant.draws}
        outcome = StepOutcome(sampled=sampled, compute_s=0.01)
        ready = time.perf_counter()
        scheduler.commit(plan, outcome)
        scheduler.take_changes()
        times.append((planned - start + time.perf_counter() - ready) * 1e3)
    return times[WARM_UP:]


def main() -> None:
    medians = {}
    print("sequences  median ms  p95 ms")
    for num_seqs in (1, 4, 16, 64):
        times = sorted(plan_and_commit_ms(num_seqs))
        medians[num_seqs] = round(statistics.median(times), 4)
        print(f"{num_seqs:9}  {medians[num_seqs]:9.3f}  {times[int(0.95 * len(times))]:6.3f}")
    print(json.dumps({"plan_and_commit_median_ms": medians}))


if __name__ == "__main__":
    main()
