"""Random loads: everybody ends with the right tokens, and nothing leaks, loses or thrashes."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from kvalet.core.changes import ChangeKind
from kvalet.core.plan import PAGE_CELLS, SlotId, Transfer
from kvalet.core.sequence import Sequence
from kvalet.engine.fake import FakeEngine
from kvalet.errors import Conflict
from tests.builders import Run, alone, alone_endless, make_prompt, make_scheduler, make_seq
from tests.strategies import Job, Load, loads

PREFIX = make_prompt(3 * PAGE_CELLS, salt=99)


def sequence(index: int, job: Job) -> Sequence:
    own = make_prompt(job.num_prompt, salt=index)
    prompt = (*PREFIX[: job.shares * PAGE_CELLS], *own)[: job.num_prompt]
    return make_seq(
        index,
        prompt=prompt,
        max_new_tokens=job.max_new_tokens,
        priority=job.priority,
        cache_prompt=job.cache_prompt,
    )


def engine_of(load: Load) -> FakeEngine:
    engine = FakeEngine(load.num_pages, transfer_steps=load.transfer_steps)

    def fault(transfer: Transfer) -> str | None:
        is_faulty = load.fault_every and transfer.transfer_id % load.fault_every == 0
        if load.context_shift:  # a shifted state that is lost cannot be had again
            return None
        return "injected" if is_faulty else None

    engine.faults.transfer = fault
    return engine


def simulate(load: Load) -> tuple[Run, list[Sequence]]:
    scheduler = make_scheduler(
        load.num_pages,
        load.num_slots,
        batch_size=max(load.batch_size, load.num_slots),
        decode_chunk=load.decode_chunk,
        host_budget_pages=load.budget,
        victim_policy=load.policy,
        preempt_every=load.preempt_every,
        planner=load.planner,
        trigger=load.trigger,
        entry_order=load.entry_order,
        context_shift=load.context_shift,
        rotate_s=10.0,
        disk_budget_pages=load.disk,
        cache_budget_pages=load.cache,
        mirror=load.mirror,
        lookahead_steps=8 if load.transfer_steps else 1,
    )
    runner = Run(scheduler, engine_of(load))
    seqs = [sequence(index, job) for index, job in enumerate(load.jobs, 1)]
    last = max(job.arrives_at for job in load.jobs)
    for step in range(last + 1):
        for seq, job in zip(seqs, load.jobs, strict=True):
            if job.arrives_at == step:
                scheduler.add(seq)
            if job.cancel_at is not None and job.arrives_at + job.cancel_at == step:
                scheduler.cancel(seq.seq_id)
        if step == load.park_at:
            with suppress(Conflict):
                scheduler.park(SlotId(0), timeout_s=20.0)
        runner.step()
        if load.budget is not None and not load.context_shift:
            assert scheduler.store.num_pinned <= load.budget
        assert scheduler.store.num_on_disk <= load.disk
    return runner, seqs


def generated_by(runner: Run, seq: Sequence) -> list[int]:
    drawn = (outcome.sampled.get(seq.seq_id, ()) for outcome in runner.outcomes)
    return [sampled.token for one_step in drawn for sampled in one_step]


def expected(load: Load, seq: Sequence) -> list[int]:
    n_ctx = load.num_pages * PAGE_CELLS
    if load.context_shift:
        return alone_endless(seq, n_ctx)
    return alone(seq, n_ctx)[seq.num_prompt :]


def work(load: Load) -> int:
    """Steps that everybody one after another would take, generously."""
    smallest_chunk = min(load.batch_size, load.decode_chunk) // load.num_slots or 1
    tokens = sum(min(job.max_new_tokens, load.num_pages * PAGE_CELLS) for job in load.jobs)
    prompts = sum(job.num_prompt for job in load.jobs) // smallest_chunk
    return 200 + (tokens + prompts) * (4 + 2 * load.transfer_steps)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(loads())
def test_everybody_ends_with_the_tokens_they_have_alone(load: Load) -> None:
    runner, seqs = simulate(load)
    runner.until_idle(max_steps=work(load) * (12 if load.preempt_every else 3))
    assert not runner.of(ChangeKind.FAILED)
    for seq, job in zip(seqs, load.jobs, strict=True):
        if job.cancel_at is None:
            assert seq.finish_reason is not None
            assert generated_by(runner, seq) == expected(load, seq)
    runner.step(now=1e9)  # what was parked on request is out of time
    runner.until_idle()
    assert runner.scheduler.pool.num_referenced == 0
    store = runner.scheduler.store
    assert (store.num_pinned, store.num_on_disk) == (0, 0)
    assert load.cache is None or store.num_cached <= load.cache


PRESSED = Load(
    num_pages=24,
    num_slots=6,
    jobs=tuple(Job(40 + 30 * i, 300, 5 * i, 0, 0, True, None) for i in range(6)),
    batch_size=512,
    decode_chunk=64,
    budget=0,
    policy="smallest",
    preempt_every=0,
    planner=True,
    transfer_steps=0,
    fault_every=0,
    trigger="lookahead",
    entry_order="head",
    context_shift=False,
    park_at=None,
)


@pytest.mark.parametrize("trigger", ["lookahead", "watermark"])
def test_replays_stay_under_a_ceiling(trigger: str) -> None:
    """Correctness cannot see thrash: the share of all computed tokens that were computed again,
    with nothing kept in the host store, and how often one chat is parked."""
    runner, seqs = simulate(replace(PRESSED, trigger=trigger))
    runner.until_idle()
    computed = sum(plan.num_tokens for plan in runner.plans)
    assert runner.scheduler.counters.n_preempt >= 3
    assert runner.scheduler.counters.n_recompute_tokens < 0.5 * computed
    assert max(seq.num_preempts for seq in seqs) <= 6
