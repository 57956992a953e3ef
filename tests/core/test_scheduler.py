"""The scheduler on the fake engine: each test one behaviour, of rows S and P."""

import pytest
from typing_extensions import override

from kvalet.core.changes import ChangeKind
from kvalet.core.plan import PAGE_CELLS, Direction, FinishReason, Grant, SeqId, Transfer
from kvalet.core.request import Request, SamplingParams
from kvalet.core.sequence import Sequence, Status
from kvalet.engine.fake import FakeEngine
from kvalet.errors import ContextExceeded, Overloaded, RequestError
from tests.builders import GREEDY, Run, alone, make_prompt, make_scheduler, make_seq, run


def test_a_lone_chat_generates_what_it_may() -> None:
    seq = make_seq(1, 40, 50)
    done = run([seq])
    assert seq.num_generated == 50
    assert done.changes[-1].reason is FinishReason.LENGTH
    assert done.scheduler.pool.num_referenced == 0


def test_two_chats_that_fit_alone_but_not_together_both_finish_as_alone() -> None:
    seqs = [make_seq(i, 100, 300) for i in (1, 2)]
    done = run(seqs, make_scheduler(num_pages=16))
    assert done.scheduler.counters.n_preempt >= 1
    assert done.scheduler.counters.pages_in >= 1
    assert done.peak_pages == 16
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_parked_pages_come_back_from_the_store_and_nothing_is_computed_twice() -> None:
    done = run([make_seq(i, 60, 60) for i in (1, 2, 3)], make_scheduler(preempt_every=8))
    counters = done.scheduler.counters
    assert counters.n_preempt == counters.n_resume == counters.n_preempt_swap == 3 * 7
    assert counters.pages_in == counters.pages_out > 0
    assert counters.n_recompute_tokens == 0
    assert done.scheduler.store.num_held == 0


def test_forced_parks_change_no_token() -> None:
    seqs = [make_seq(i, 60, 60) for i in (1, 2, 3)]
    run(seqs, make_scheduler(preempt_every=8))
    for seq in seqs:
        assert seq.num_preempts == 7
        assert seq.tokens == alone(seq)


def test_forced_parks_replay_exactly_what_was_dropped_without_a_store() -> None:
    seqs = [make_seq(i, 60, 60) for i in (1, 2)]
    done = run(seqs, make_scheduler(preempt_every=8, host_budget_pages=0))
    counters = done.scheduler.counters
    assert counters.n_preempt == counters.n_preempt_recompute == 2 * 7
    assert counters.n_recompute_tokens == 2 * sum(60 + 8 * k - 1 for k in range(1, 8))
    assert counters.pages_in == counters.pages_out == 0
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_a_broken_copy_would_change_the_text() -> None:
    class Flipping(FakeEngine):
        @override
        def _copy(self, transfer: Transfer) -> None:
            super()._copy(transfer)
            if transfer.direction is Direction.OUT:
                self._host[transfer.moves[0][1]][0] ^= 1

    seq = make_seq(1, 60, 60)
    run([seq], make_scheduler(preempt_every=8), Flipping(16))
    assert seq.tokens != alone(seq)


def test_two_chats_with_one_system_prompt_hold_it_once_when_they_arrive_together() -> None:
    prefix = make_prompt(4 * PAGE_CELLS)
    seqs = [make_seq(i, prompt=(*prefix, i, i), max_new_tokens=20) for i in (1, 2)]
    done = run(seqs, make_scheduler(num_pages=64))
    assert done.peak_pages <= 4 + 2
    assert sum(plan.num_tokens for plan in done.plans) < 4 * PAGE_CELLS + 2 * 30
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_a_finished_chat_s_prefix_is_taken_by_name() -> None:
    scheduler, engine = make_scheduler(num_pages=64), FakeEngine(64)
    run([make_seq(1, 100, 5)], scheduler, engine)
    again = make_seq(2, prompt=make_prompt(100, 1), max_new_tokens=5)
    run([again], scheduler, engine)
    assert again.num_cached == 3 * PAGE_CELLS
    assert again.tokens == alone(again)


def test_the_last_prompt_token_is_always_computed() -> None:
    scheduler, engine = make_scheduler(num_pages=64), FakeEngine(64)
    run([make_seq(1, 64, 5)], scheduler, engine)
    again = make_seq(2, prompt=make_prompt(64, 1), max_new_tokens=5)
    run([again], scheduler, engine)
    assert again.num_cached == PAGE_CELLS


def test_cache_prompt_false_neither_takes_nor_leaves() -> None:
    scheduler, engine = make_scheduler(num_pages=64), FakeEngine(64)
    run([make_seq(1, 100, 5, cache_prompt=False)], scheduler, engine)
    assert scheduler.pool.num_cached == 0
    run([make_seq(2, prompt=make_prompt(100, 1), max_new_tokens=5)], scheduler, engine)
    private = make_seq(3, prompt=make_prompt(100, 1), max_new_tokens=5, cache_prompt=False)
    run([private], scheduler, engine)
    assert private.num_cached == 0
    assert private.tokens == alone(private)


def test_cached_pages_are_given_up_before_anybody_is_parked() -> None:
    scheduler, engine = make_scheduler(num_pages=16), FakeEngine(16)
    run([make_seq(1, 200, 50)], scheduler, engine)
    assert scheduler.pool.num_cached > 0
    run([make_seq(i, 100, 100) for i in (2, 3)], scheduler, engine)
    assert scheduler.counters.n_preempt == 0


def test_a_parked_chat_survives_the_end_and_eviction_of_its_co_holder() -> None:
    prefix = make_prompt(3 * PAGE_CELLS)
    sharer = make_seq(1, prompt=(*prefix, 1), max_new_tokens=20)
    parked = make_seq(2, prompt=(*prefix, 2), max_new_tokens=250)
    leading = make_seq(3, 150, 350)
    done = run([sharer, parked, leading], make_scheduler(num_pages=16))
    assert parked.num_preempts >= 1
    assert done.num_finished == 3
    for seq in (sharer, parked, leading):
        assert seq.tokens == alone(seq)


def test_the_largest_is_never_parked_for_pressure() -> None:
    big, small = make_seq(1, 200, 250), make_seq(2, 40, 300)
    run([big, small], make_scheduler(num_pages=16))
    assert big.num_preempts == 0
    assert small.num_preempts >= 1


def test_nobody_passes_the_head_of_the_line() -> None:
    scheduler = make_scheduler(num_pages=16, num_slots=4)
    runner = Run(scheduler, FakeEngine(16))
    scheduler.add(make_seq(1, 300, 150))
    runner.step()
    head, small = make_seq(2, 250, 5), make_seq(3, 10, 5)
    scheduler.add(head)
    scheduler.add(small)
    runner.step()
    assert (head.status, small.status) == (Status.STARTED, Status.STARTED)
    runner.until_idle()
    first_grants = list(dict.fromkeys(g.seq_id for p in runner.plans for g in p.grants))
    assert first_grants == [1, 2, 3]
    assert small.num_preempts == head.num_preempts == 0


def test_requests_beyond_the_slots_wait_in_a_bounded_queue() -> None:
    scheduler = make_scheduler(num_slots=1, max_queue=1)
    scheduler.add(make_seq(1))
    scheduler.add(make_seq(2))
    with pytest.raises(Overloaded):
        scheduler.add(make_seq(3))
    done = Run(scheduler, FakeEngine(16)).until_idle()
    assert done.of(ChangeKind.FINISHED) == [1, 2]


def test_slots_are_pinned_or_the_least_recently_used() -> None:
    scheduler = make_scheduler(num_slots=3)
    pinned, first, second = make_seq(1, id_slot=1), make_seq(2), make_seq(3)
    for seq in (pinned, first, second):
        scheduler.add(seq)
    assert [seq.slot for seq in (pinned, first, second)] == [1, 0, 2]
    waits = make_seq(4, id_slot=1)
    scheduler.add(waits)
    Run(scheduler, FakeEngine(16)).until_idle()
    assert waits.slot == 1


@pytest.mark.parametrize("num_prompt", [512, 600])
def test_a_prompt_that_can_never_fit_is_rejected_with_the_numbers(num_prompt: int) -> None:
    with pytest.raises(ContextExceeded) as caught:
        make_scheduler(num_pages=16).add(make_seq(1, num_prompt))
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (num_prompt, 512)


def test_bad_requests_are_refused_by_field() -> None:
    scheduler = make_scheduler()
    with pytest.raises(RequestError, match="slot 9"):
        scheduler.add(make_seq(1, id_slot=9))
    with pytest.raises(RequestError, match="no tokens"):
        scheduler.add(Sequence(SeqId(2), Request("empty", (), 1)))


def test_a_sequence_that_reaches_the_context_ends_there() -> None:
    seq = make_seq(1, 500, None)
    done = run([seq], make_scheduler(num_pages=16))
    assert len(seq.tokens) == 512
    assert done.changes[-1].reason is FinishReason.CONTEXT


def test_two_prompts_that_nearly_fill_the_pool_take_turns() -> None:
    seqs = [make_seq(i, 250, 5) for i in (1, 2)]
    done = run(seqs, make_scheduler(num_pages=8, n_ctx=256))
    assert done.num_finished == 2
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_prefill_is_a_small_chunk_while_somebody_decodes() -> None:
    scheduler = make_scheduler(num_pages=64)
    runner = Run(scheduler, FakeEngine(64))
    scheduler.add(make_seq(1, 10, 100))
    runner.step()
    scheduler.add(make_seq(2, 1000, 1))
    sizes = [len(g.tokens) for _ in range(8) for g in runner.step().grants if g.seq_id == 2]
    assert sizes == [64] * 8


def test_a_lone_prompt_is_taken_in_whole_batches() -> None:
    done = run([make_seq(1, 1100, 1)], make_scheduler(num_pages=64, batch_size=512))
    assert [plan.num_tokens for plan in done.plans] == [512, 512, 76]


def test_the_same_calls_give_the_same_plans() -> None:
    def plans() -> object:
        seqs = [make_seq(i, 50 + 20 * i, 120) for i in range(1, 7)]
        return run(seqs, make_scheduler(num_pages=16)).plans

    assert plans() == plans()


def test_penalties_see_the_last_tokens_only_when_there_are_any() -> None:
    plain = make_seq(1, 10, 3)
    penal = make_seq(2, 10, 3, sampling=SamplingParams(repeat_penalty=1.1, repeat_last_n=4))
    done = run([plain, penal])
    draws = {(g.seq_id, d.index): d for p in done.plans for g in p.grants for d in g.draws}
    assert draws[SeqId(1), 2].recent == ()
    assert draws[SeqId(2), 2].recent == tuple(penal.tokens[8:12])


@pytest.mark.parametrize("steps", range(12))
def test_cancel_in_every_state_gives_everything_back(steps: int) -> None:
    scheduler = make_scheduler(num_pages=16, num_slots=2, preempt_every=2)
    runner = Run(scheduler, FakeEngine(16, transfer_steps=2))
    victim, other = make_seq(1, 100, 50), make_seq(2, 40, 40)
    scheduler.add(victim)
    scheduler.add(other)
    for _ in range(steps):
        runner.step()
    scheduler.cancel(victim.seq_id)
    assert victim.status is Status.ENDED
    scheduler.check()
    runner.until_idle()
    assert scheduler.pool.num_referenced == scheduler.store.num_held == 0
    assert other.tokens == alone(other)


def test_cancel_of_a_queued_or_unknown_request() -> None:
    scheduler = make_scheduler(num_slots=1)
    scheduler.add(make_seq(1))
    scheduler.add(make_seq(2))
    scheduler.cancel(SeqId(2))
    scheduler.cancel(SeqId(77))
    assert Run(scheduler, FakeEngine(16)).until_idle().of(ChangeKind.FINISHED) == [1]


def test_a_failing_computation_ends_only_its_own_sequence() -> None:
    engine = FakeEngine(16)
    engine.faults.compute = lambda g: "boom" if g.seq_id == 1 and g.start > 60 else None
    other = make_seq(2, 40, 60)
    done = run([make_seq(1, 40, 60), other], make_scheduler(), engine)
    failed = [change for change in done.changes if change.kind is ChangeKind.FAILED]
    assert [(change.seq_id, change.message) for change in failed] == [(1, "boom")]
    assert other.tokens == alone(other)


def test_what_the_engine_did_not_run_is_parked_and_comes_back() -> None:
    engine = FakeEngine(16)
    refused: list[int] = []

    def no_room(grant: Grant) -> bool:
        if grant.start == 64 and grant.seq_id == 1 and len(refused) < 1:
            refused.append(grant.seq_id)
            return True
        return False

    engine.faults.no_room = no_room
    seqs = [make_seq(1, 40, 60), make_seq(2, 60, 60)]
    done = run(seqs, make_scheduler(), engine)
    assert done.scheduler.counters.n_preempt == 1
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_a_copy_out_that_fails_is_replayed() -> None:
    engine = FakeEngine(16)
    engine.faults.transfer = lambda t: "no memory" if t.direction is Direction.OUT else None
    seq = make_seq(1, 60, 30)
    done = run([seq], make_scheduler(preempt_every=8), engine)
    assert seq.tokens == alone(seq)
    assert done.scheduler.counters.n_preempt_fail == 3
    assert done.scheduler.counters.n_recompute_tokens > 0
    assert done.scheduler.store.num_held == 0


def test_a_copy_in_that_fails_is_tried_three_times_and_then_replayed() -> None:
    engine = FakeEngine(16)
    engine.faults.transfer = lambda t: "bad" if t.direction is Direction.IN else None
    seq = make_seq(1, 60, 10)
    done = run([seq], make_scheduler(preempt_every=8), engine)
    assert done.scheduler.counters.n_preempt_fail == 3
    assert seq.num_recomputed == 60 + 7
    assert seq.tokens == alone(seq)
    assert done.scheduler.pool.num_referenced == done.scheduler.store.num_held == 0


def test_a_client_is_told_once_per_park_and_not_after_the_end() -> None:
    done = run([make_seq(i, 60, 60) for i in (1, 2)], make_scheduler(preempt_every=8))
    for seq_id in (1, 2):
        told = [c.kind for c in done.changes if c.seq_id == seq_id]
        assert told == [ChangeKind.PREEMPTED, ChangeKind.RESUMED] * 7 + [ChangeKind.FINISHED]


def test_priority_decides_who_is_parked() -> None:
    kept, parked = make_seq(1, 60, 300, priority=1), make_seq(2, 100, 300)
    run([kept, parked], make_scheduler(num_pages=16))
    assert (kept.num_preempts, parked.num_preempts > 0) == (0, True)


def test_without_the_planner_the_last_resort_still_serves_everybody() -> None:
    seqs = [make_seq(i, 100, 300) for i in (1, 2, 3)]
    done = run(seqs, make_scheduler(num_pages=16, planner=False))
    assert done.scheduler.counters.n_preempt >= 1
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_a_budget_between_the_park_sizes_mixes_both_modes() -> None:
    seqs = [make_seq(i, 60 + 30 * i, 200) for i in range(1, 5)]
    done = run(seqs, make_scheduler(num_pages=16, host_budget_pages=7))
    counters = done.scheduler.counters
    assert counters.n_preempt_swap > 0
    assert counters.n_preempt_recompute > 0
    assert counters.n_preempt == counters.n_preempt_swap + counters.n_preempt_recompute
    for seq in seqs:
        assert seq.tokens == alone(seq)


def test_sampled_text_depends_on_its_key_alone() -> None:
    warm = SamplingParams(temperature=0.9, seed=7)
    seqs = [make_seq(i, 90, 150, sampling=warm) for i in range(1, 5)]
    run(seqs, make_scheduler(num_pages=12))
    for seq in seqs:
        assert seq.tokens == alone(seq)
    assert GREEDY.temperature == 0
