"""Runs small enough to be followed by hand, and what holds of every run."""

import itertools
from dataclasses import replace

import pytest

from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES
from kvalet.core.scheduler import Scheduler
from kvalet.settings import changed
from kvalet.sim.costs import CostModel
from kvalet.sim.figures import figures_of
from kvalet.sim.run import Run, Simulation, simulate
from kvalet.sim.scenario import Scenario
from kvalet.sim.timeline import Phase
from kvalet.sim.workloads import WORKLOADS, Lengths, Request, draw
from tests.sim.builders import PRESSED, SECOND_A_STEP, draw_small, request

COSTS = CostModel()
SYNCHRONOUS = changed(Scenario(), preempt_async=False, cache_ram=0)


def _ends(run: Run) -> list[float | None]:
    return [timeline.end_s for timeline in run.timelines]


def test_two_chats_with_room_for_both() -> None:
    scenario = changed(SYNCHRONOUS, ctx_size=256)
    run = simulate(scenario, (request(0, 40, 3), request(1, 40, 5)), SECOND_A_STEP)
    # Step 1 computes both prompts and draws both first tokens; then a token a step each.
    assert _ends(run) == [3.0, 5.0]
    figures = figures_of(run)
    assert (figures.makespan_s, figures.mean_completion_s, figures.parks) == (5.0, 4.0, 0)
    assert figures.tokens_per_s == 8 / 5
    assert figures.utilisation == (3 * 4 + 2 * 2) / (5 * 8)  # two pages each, of eight


def test_two_chats_that_do_not_fit_together() -> None:
    """In 128 cells each of the two grows to 92. At 63 the next step but one needs a third page, and
    the later chat makes way."""
    scenario = changed(SYNCHRONOUS, ctx_size=128)
    run = simulate(scenario, (request(0, 32, 60), request(1, 32, 60)), SECOND_A_STEP)
    first, second = run.timelines
    # A token a step, and a second in which the other's two pages go out.
    assert list(first.spans()) == [(Phase.RUNNING, 0.0, 61.0)]
    # Its full page is still in the pool, by name. The other one comes in within a quarter of a
    # second, in a step that computes nothing; then come the 28 tokens that are left.
    assert list(second.spans()) == [
        (Phase.RUNNING, 0.0, 32.0),
        (Phase.PARKING, 32.0, 34.0),
        (Phase.PARKED, 34.0, 61.0),
        (Phase.RESTORING, 61.0, 61.251),
        (Phase.RUNNING, 61.251, 89.251),
    ]
    figures = figures_of(run)
    assert (figures.parks, figures.cells_copied) == (1, 3 * 32)
    assert figures.longest_wait_s == pytest.approx(61.251 - 32)
    assert figures.longest_queue_s == 0


def test_what_is_not_copied_is_computed_again() -> None:
    scenario = changed(SYNCHRONOUS, ctx_size=128, preempt_ram=0)
    run = simulate(scenario, (request(0, 32, 60), request(1, 32, 60)), SECOND_A_STEP)
    figures = figures_of(run)
    assert (figures.parks, figures.cells_copied) == (1, 0)
    assert figures.tokens_recomputed == 31  # of its 63, the first page is found in the pool
    assert Phase.REPLAYING in [phase for phase, _, _ in run.timelines[1].spans()]


def test_a_queue_is_no_wait() -> None:
    scenario = changed(SYNCHRONOUS, ctx_size=256, parallel=1)
    run = simulate(scenario, (request(0, 40, 3), request(1, 40, 5)), SECOND_A_STEP)
    figures = figures_of(run)
    assert (figures.longest_queue_s, figures.longest_wait_s) == (3.0, 0.0)


def test_a_long_copy_with_nobody_running_is_no_standstill() -> None:
    """The leader leaves while the other comes back: pages of 2 s, and nothing to compute."""
    costs = replace(SECOND_A_STEP, step_s=0.01, page_in_s=2.0)
    scenario = changed(Scenario(), ctx_size=128, preempt_mirror=False)
    run = simulate(scenario, (request(0, 32, 60), request(1, 32, 60)), costs)
    figures = figures_of(run)
    assert (figures.parks, figures.completed) == (1, 2)
    assert figures.longest_wait_s > 3


def test_time_passes_until_the_next_arrival() -> None:
    scenario = changed(SYNCHRONOUS, ctx_size=256)
    run = simulate(scenario, (request(0, 8, 2, at=10.0), request(1, 8, 2, at=50.5)), SECOND_A_STEP)
    assert _ends(run) == [12.0, 52.5]
    assert figures_of(run).makespan_s == 42.5
    assert figures_of(run).mean_completion_s == 2.0


def test_a_turn_follows_the_one_before_and_finds_its_pages() -> None:
    turns = (
        Request(0, 0.0, 64, 40, 40),
        Request(0, 0.0, 120, 2, 2, pause_s=5.0),
    )
    run = simulate(changed(SYNCHRONOUS, ctx_size=512), turns, SECOND_A_STEP)
    assert run.timelines[1].arrival_s == 40.0 + 5.0
    # 64 + 40 tokens are known, the last of them was drawn but not computed: three full pages.
    assert figures_of(run).tokens_cached == 96


@pytest.mark.parametrize("order", LINE_ORDERS)
@pytest.mark.parametrize("policy", VICTIM_POLICIES)
def test_every_policy_by_its_name(policy: str, order: str) -> None:
    scenario = changed(PRESSED, preempt_policy=policy, preempt_resume=order)
    figures = figures_of(simulate(scenario, draw_small("measured"), COSTS))
    assert figures.completed == figures.requests == 4
    assert figures.parks > 0


@pytest.mark.parametrize("trigger", ["lookahead", "watermark"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_ends_with_its_bookkeeping_in_order(workload: str, trigger: str) -> None:
    scenario = changed(PRESSED, preempt_trigger=trigger)
    requests = draw_small(workload, arrivals="poisson")
    simulation = Simulation(scenario, requests, COSTS)
    run = simulation.run()
    simulation.scheduler.check()
    assert len(run.timelines) == len(requests)
    assert all(timeline.is_complete for timeline in run.timelines)
    lengths = sorted(timeline.num_output for timeline in run.timelines)
    assert lengths == sorted(request.num_output for request in requests)


def test_spans_leave_no_gap() -> None:
    run = simulate(PRESSED, draw_small("agents"), COSTS)
    for timeline in run.timelines:
        spans = list(timeline.spans())
        assert spans[0][1] == timeline.arrival_s
        assert spans[-1][2] == timeline.end_s
        assert all(before[2] == after[1] for before, after in itertools.pairwise(spans))


def test_the_scheduler_is_not_told_how_long_an_answer_is() -> None:
    told: list[int | None] = []

    def note(now: float, scheduler: Scheduler) -> None:
        told.extend(seq.request.max_new_tokens for seq in scheduler.slots if seq)

    Simulation(PRESSED, (Request(0, 0.0, 8, 5, max_tokens=100),), COSTS, note).run()
    assert set(told) == {100}


def test_a_replay_is_not_begun_for_a_few_tokens() -> None:
    """Eight chats that take turns in a small pool without host memory (ADR 0010)."""
    pressed = changed(Scenario(), tokens=200, ctx_size=768, parallel=8, preempt_ram=0, cache_ram=0)
    requests = draw("measured", "together", 8, 1.0, Lengths(200, 768), seed=1)
    patient, hasty = (
        figures_of(simulate(changed(pressed, preempt_replay_margin=steps), requests, COSTS))
        for steps in (pressed.preemption.replay_margin, 0)
    )
    assert patient.completed == hasty.completed == 8
    assert patient.parks < hasty.parks
    assert patient.tokens_recomputed < hasty.tokens_recomputed
    assert patient.makespan_s < hasty.makespan_s


def test_the_lower_priority_is_parked() -> None:
    """Of two chats that grow out of the pool together, whichever came first."""
    scenario = changed(SYNCHRONOUS, ctx_size=128)
    for tiers in ((1, 0), (0, 1)):
        chats = [replace(request(i, 32, 60), priority=tier) for i, tier in enumerate(tiers)]
        run = simulate(scenario, tuple(chats), SECOND_A_STEP)
        parked = [line.priority for line in run.timelines if line.longest_wait_s]
        assert parked == [0]


def test_waste_stays_small() -> None:
    """Parks and copies of a fixed load: correctness cannot see a chat that goes in and out."""
    figures = figures_of(simulate(PRESSED, draw_small("measured"), COSTS))
    assert figures.parks <= 2 * figures.requests
    assert figures.utilisation > 0.6
