"""Transitions, names, and what a sequence may still generate."""

import pytest

from kvalet.core.plan import PAGE_CELLS
from kvalet.core.sequence import TRANSITIONS, Move, Status, page_name
from kvalet.errors import InvariantViolation
from tests.builders import make_prompt, make_seq

EVERY = [(status, move) for status in Status for move in Move]


@pytest.mark.parametrize(("status", "move"), EVERY)
def test_only_the_table_s_transitions_are_possible(status: Status, move: Move) -> None:
    seq = make_seq(1)
    seq.status = status
    if (status, move) in TRANSITIONS:
        seq.move(move)
        assert seq.status is TRANSITIONS[status, move]
    else:
        with pytest.raises(InvariantViolation, match="sequence 1 is"):
            seq.move(move)
        assert seq.status is status


def test_every_state_can_end_and_none_follows() -> None:
    assert {s for s, m in TRANSITIONS if m is Move.END} == set(Status) - {Status.ENDED}
    assert not [move for status, move in TRANSITIONS if status is Status.ENDED]


def test_every_state_is_reachable() -> None:
    assert set(TRANSITIONS.values()) | {Status.QUEUED} == set(Status)


def test_a_name_covers_everything_before_it() -> None:
    a = make_seq(1, prompt=make_prompt(3 * PAGE_CELLS))
    b = make_seq(2, prompt=(1, *make_prompt(3 * PAGE_CELLS)[1:]))
    assert a.page_tokens(2) == b.page_tokens(2)
    assert a.name_of(2, b"root") != b.name_of(2, b"root")
    assert a.name_of(0, b"root") == page_name(b"root", a.page_tokens(0))


def test_names_differ_by_root() -> None:
    prompt = make_prompt(PAGE_CELLS)
    one, other = make_seq(1, prompt=prompt), make_seq(2, prompt=prompt)
    assert one.name_of(0, b"model a") != other.name_of(0, b"model b")


@pytest.mark.parametrize(
    ("max_new_tokens", "n_ctx", "left"), [(5, 100, 5), (None, 100, 60), (99, 50, 10)]
)
def test_tokens_left(max_new_tokens: int | None, n_ctx: int, left: int) -> None:
    assert make_seq(1, 40, max_new_tokens).num_left(n_ctx) == left
