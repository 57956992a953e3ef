"""Random loads, pools, budgets, policies and faults: what holds beside the right tokens.

That everybody ends with the tokens it has alone, within the budget, is
`tests/core/test_properties.py`, whose loads these are.
"""

from hypothesis import HealthCheck, given, settings

from kvalet.core.changes import ChangeKind
from kvalet.core.plan import SeqId
from tests.builders import Run
from tests.core.test_properties import simulate, work
from tests.strategies import Load, loads


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=15)
@given(loads())
def test_the_same_load_gives_the_same_story_and_it_adds_up(load: Load) -> None:
    max_steps = work(load) * (12 if load.preempt_every else 3)
    first, second = (simulate(load)[0].until_idle(max_steps) for _ in range(2))
    assert first.plans == second.plans
    assert first.changes == second.changes
    assert never_back(first) <= {
        SeqId(index) for index, job in enumerate(load.jobs, 1) if job.cancel_at is not None
    }
    assert first.scheduler.counters.n_recompute_tokens <= parked_cells(first)


def never_back(runner: Run) -> set[SeqId]:
    """Who was told of a pause, and neither of its end nor of its own."""
    is_away: dict[SeqId, bool] = {}
    for change in runner.changes:
        if change.kind is not ChangeKind.ROTATION_REFUSED:
            is_away[change.seq_id] = change.kind in (ChangeKind.PREEMPTED, ChangeKind.WAITING)
    return {seq_id for seq_id, away in is_away.items() if away}


def parked_cells(runner: Run) -> int:
    """A ceiling on replays for any load: nothing is computed again but what a park dropped."""
    return sum(change.parked.num_cells for change in runner.changes if change.parked is not None)
