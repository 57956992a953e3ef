"""What deciding costs: plan and commit of a step in which every sequence decodes, pressure absent.

    PYTHONPATH=. python bench/plan.py

No model: the engine is the fake one with its arithmetic left out. The last line is JSON.
"""

import json
import time

from tests.builders import make_scheduler, make_seq

from kvalet.bench.figures import Figures, percentiles
from kvalet.bench.report import circumstances, markdown, spread
from kvalet.core.plan import PAGE_CELLS, Sampled, StepOutcome

NUM_STEPS, WARM_UP = 300, 60
PAGES_EACH = 40


def plan_and_commit(num_seqs: int) -> Figures:
    num_pages = num_seqs * PAGES_EACH
    scheduler = make_scheduler(num_pages, num_seqs, n_ctx=PAGES_EACH * PAGE_CELLS)
    for seq_id in range(num_seqs):
        scheduler.add(make_seq(seq_id, 200 + seq_id, 800))
    seconds: list[float] = []
    for step in range(NUM_STEPS):
        start = time.perf_counter()
        plan = scheduler.plan(float(step))
        planned = time.perf_counter()
        sampled = {grant.seq_id: (Sampled(5),) for grant in plan.grants if grant.draws}
        outcome = StepOutcome(sampled=sampled, compute_s=0.01)
        ready = time.perf_counter()
        scheduler.commit(plan, outcome)
        scheduler.take_changes()
        seconds.append(planned - start + time.perf_counter() - ready)
    return percentiles("plan and commit", seconds[WARM_UP:], 50, 95)


def main() -> None:
    found = {count: plan_and_commit(count) for count in (1, 4, 16, 64)}
    rows = ([str(count), *(spread([ms]) for ms in of.values())] for count, of in found.items())
    print(*markdown(["sequences", *found[1]], rows), "", sep="\n")
    print(json.dumps({**circumstances(), "sequences": found}))


if __name__ == "__main__":
    main()
