"""Random loads: everybody ends with the right tokens, and nothing leaks, loses or thrashes."""

from hypothesis import HealthCheck, given, settings

from kvalet.core.changes import ChangeKind
from kvalet.core.plan import PAGE_CELLS, Transfer
from kvalet.core.sequence import Sequence
from kvalet.engine.fake import FakeEngine
from tests.builders import Run, alone, make_prompt, make_scheduler, make_seq
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
        runner.step()
        if load.budget is not None:
            assert scheduler.store.num_held <= load.budget
    return runner, seqs


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
            assert seq.tokens == alone(seq, load.num_pages * PAGE_CELLS)
    pool = runner.scheduler.pool
    assert pool.num_referenced == 0
    assert runner.scheduler.store.num_held == 0
