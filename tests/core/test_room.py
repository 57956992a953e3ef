"""The arithmetic of room, against counting by hand (behaviour P1)."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvalet.core import room
from kvalet.core.plan import PageId, pages_for
from kvalet.core.sequence import Sequence, Status
from tests.builders import make_seq

PACE = room.Pace(chunk=64, lookahead_steps=1, n_ctx=2048)


def decoding(seq_id: int, num_cells: int, max_new_tokens: int = 500) -> Sequence:
    """One token pending, `num_cells` computed."""
    seq = make_seq(seq_id, num_cells, max_new_tokens)
    seq.tokens.append(1)
    return resident(seq, Status.DECODE, num_cells)


def resident(seq: Sequence, status: Status, num_computed: int) -> Sequence:
    seq.status = status
    seq.num_computed = num_computed
    seq.table = [PageId(i) for i in range(pages_for(num_computed))]
    return seq


def test_need_is_the_page_opened_now() -> None:
    assert room.need(decoding(1, 31), PACE) == 0
    assert room.need(decoding(1, 32), PACE) == 1


def test_lookahead_is_what_comes_after_the_coming_step() -> None:
    assert room.lookahead(decoding(1, 31), PACE) == 1
    assert room.lookahead(decoding(1, 32), PACE) == 0
    assert room.lookahead(decoding(1, 31, max_new_tokens=1), PACE) == 0


def test_a_prefill_commits_the_rest_of_its_prompt() -> None:
    seq = resident(make_seq(1, 200), Status.PREFILL, 0)
    assert (room.need(seq, PACE), room.committed(seq, PACE)) == (2, 5)


def test_a_restored_sequence_commits_room_for_its_first_step() -> None:
    seq = decoding(1, 64)
    seq.status = Status.RESTORING
    assert (room.need(seq, PACE), room.committed(seq, PACE)) == (0, 1)


def test_the_lookahead_is_waived_for_a_lone_resident() -> None:
    lone = decoding(1, 31)
    assert room.shortage([lone], clear=0, leaving=0, pace=PACE) <= 0
    assert room.shortage([lone, decoding(2, 5)], clear=0, leaving=0, pace=PACE) == 1


def test_entering_alone_needs_no_lookahead() -> None:
    seq = make_seq(1, 64)
    entry = room.Entry(fresh=2, num_to_compute=64, is_resume=False)
    assert room.can_enter(seq, entry, [], clear=2, pace=PACE)
    assert not room.can_enter(seq, entry, [decoding(2, 5)], clear=2, pace=PACE)


def test_a_replay_begins_when_there_is_room_after_it() -> None:
    other, seq = decoding(2, 5), make_seq(1, 64, 500)
    copied = room.Entry(fresh=2, num_to_compute=1, is_resume=True)
    replayed = room.Entry(fresh=2, num_to_compute=64, is_resume=True, num_to_replay=63)
    last_page = room.Entry(fresh=2, num_to_compute=32, is_resume=True, num_to_replay=31)
    patient = replace(PACE, replay_margin=32)
    assert room.can_enter(seq, last_page, [other], clear=3, pace=patient)
    assert room.can_enter(seq, replayed, [other], clear=3, pace=PACE)
    assert room.can_enter(seq, copied, [other], clear=3, pace=patient)
    assert not room.can_enter(seq, replayed, [other], clear=3, pace=patient)
    assert room.can_enter(seq, replayed, [other], clear=5, pace=patient)
    assert room.can_enter(seq, replayed, [], clear=2, pace=patient)


def test_the_lookahead_spans_a_replay() -> None:
    other = decoding(2, 5)
    seq = make_seq(1, 640, 500)
    seq.status = Status.PREEMPTED
    swapped = room.Entry(fresh=20, num_to_compute=1, is_resume=True)
    replayed = room.Entry(fresh=20, num_to_compute=640, is_resume=True)
    clear = 21
    assert room.can_enter(seq, swapped, [other], clear, PACE)
    slow = room.Pace(chunk=16, lookahead_steps=1, n_ctx=2048)
    assert not room.can_enter(seq, replayed, [other], clear, slow)


@given(
    num_prompt=st.integers(1, 300),
    num_computed=st.integers(0, 299),
    steps=st.integers(0, 20),
    chunk=st.integers(1, 100),
    max_new_tokens=st.integers(1, 30),
)
def test_cells_after_equals_stepping(
    num_prompt: int, num_computed: int, steps: int, chunk: int, max_new_tokens: int
) -> None:
    seq = make_seq(1, num_prompt, max_new_tokens)
    seq.num_computed = min(num_computed, num_prompt - 1)
    pace = room.Pace(chunk, 1, n_ctx=310)
    cells, known, generated = seq.num_computed, num_prompt, 0
    for _ in range(steps):
        if cells == known:
            if generated == seq.num_left(310):
                break
            generated += 1
            known += 1
        cells = min(known, cells + chunk)
    assert room.cells_after(seq, steps, pace) == cells
