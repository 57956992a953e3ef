"""When a context shift waits for copies, and when it does not (behaviour A6)."""

from kvalet.core.plan import PAGE_CELLS, SlotId
from kvalet.core.sequence import Sequence, Status
from kvalet.engine.fake import FakeEngine
from tests.builders import Run, alone_endless, make_prompt, make_scheduler, make_seq

SLOT = SlotId(0)
N_CTX = 256


def begin(engine: FakeEngine, num_shared: int) -> tuple[Run, Sequence]:
    """A chat with ten tokens to go before it shifts; another, that has ended, has left the first
    pages of both in slot 0. They are being saved."""
    scheduler = make_scheduler(10, 3, n_ctx=N_CTX, context_shift=True)
    runner = Run(scheduler, engine)
    shared = make_prompt(num_shared * PAGE_CELLS + 3, salt=7)
    scheduler.add(make_seq(1, prompt=shared, max_new_tokens=6, id_slot=0))
    runner.until_idle()
    prompt = (*shared, *make_prompt(N_CTX - 10 - len(shared), salt=9))
    seq = make_seq(2, prompt=prompt, max_new_tokens=60, id_slot=1)
    scheduler.add(seq)
    while seq.status is not Status.DECODE:
        runner.step()
    scheduler.states.save(SLOT, "state")
    return runner, seq


def check_to_the_end(runner: Run, engine: FakeEngine, seq: Sequence) -> None:
    runner.until_idle()
    assert seq.tokens[-20:] == alone_endless(seq, N_CTX)[-20:]
    saved = engine.files["state"]
    assert [cell for page in saved.pages for cell in page] == list(saved.tokens)


def test_a_shift_does_not_wait_for_copies_of_what_it_drops() -> None:
    engine = FakeEngine(10, transfer_steps=30)
    runner, seq = begin(engine, 2)
    for _ in range(20):
        runner.step()
    assert runner.scheduler.is_in_flight
    assert seq.num_dropped > 0
    assert seq.num_generated == 21
    check_to_the_end(runner, engine, seq)


def test_a_shift_waits_for_copies_of_what_it_moves_and_is_not_charged_for_them() -> None:
    engine = FakeEngine(10, transfer_steps=30)
    runner, seq = begin(engine, 6)
    for _ in range(20):
        runner.step()
    assert runner.scheduler.is_in_flight
    assert (seq.num_dropped, len(seq.tokens), seq.num_to_copy) == (0, N_CTX, 0)
    check_to_the_end(runner, engine, seq)
    assert runner.scheduler.counters.n_preempt == 0
