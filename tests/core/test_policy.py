"""Who is parked: never the leader, only who gains, in the policy's order (behaviour P2)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvalet.core.plan import PageId, SeqId
from kvalet.core.policy import LINE_ORDERS, PASSING, VICTIM_POLICIES, choose_victims, leader
from kvalet.core.sequence import Sequence, Status
from tests.builders import make_seq


def holding(seq_id: int, num_computed: int, **kw: int) -> Sequence:
    seq = make_seq(seq_id, 2000, priority=kw.pop("priority", 0))
    seq.status = Status.DECODE
    seq.num_computed = num_computed
    for name, value in kw.items():
        setattr(seq, name, value)
    return seq


def victims(
    residents: list[Sequence],
    policy: str = "smallest",
    gain: Callable[[Sequence], int] = lambda s: 1,
) -> list[SeqId]:
    order = VICTIM_POLICIES[policy]
    chosen = choose_victims(residents, gain, lambda page: 2, order)
    return [seq.seq_id for seq in chosen]


A, B, C = holding(1, 300), holding(2, 100), holding(3, 200)


@pytest.mark.parametrize(
    ("policy", "victim"), [("smallest", 2), ("largest", 3), ("youngest", 3), ("oldest", 2)]
)
def test_order_of_each_policy_spares_the_leader(policy: str, victim: int) -> None:
    assert victims([A, B, C], policy) == [victim]


def may_generate(seq_id: int, num_computed: int, limit: int | None, num_done: int = 0) -> Sequence:
    seq = holding(seq_id, num_computed)
    seq.request = replace(seq.request, max_new_tokens=limit)
    seq.tokens += [0] * num_done
    return seq


def test_furthest_weighs_what_is_held_against_what_may_still_come() -> None:
    near, far = may_generate(1, 300, 50), may_generate(2, 300, 700)
    later, nearly_done = may_generate(3, 100, 500), may_generate(4, 100, 500, num_done=490)
    unlimited = may_generate(5, 1000, None)
    seqs = [near, nearly_done, far, later, unlimited]
    order = [unlimited, later, far, nearly_done, near]  # `later` and `far` are a tie
    assert sorted(seqs, key=VICTIM_POLICIES["furthest"]) == order


def waiting(seq_id: int, ticket: int, num_preempts: int = 0) -> Sequence:
    seq = make_seq(seq_id)
    seq.line_ticket, seq.num_preempts = ticket, num_preempts
    return seq


def ids_in_line(order: str, seqs: list[Sequence]) -> list[SeqId]:
    return [seq.seq_id for seq in sorted(seqs, key=LINE_ORDERS[order])]


def test_parked_ones_come_back_before_new_ones_come_in_each_in_turn() -> None:
    line = [waiting(1, 1), waiting(2, 4, 1), waiting(3, 3, 2), waiting(4, 2), waiting(5, 5)]
    line[4].request = replace(line[4].request, priority=1)
    assert ids_in_line("head", line) == [5, 1, 4, 3, 2]
    assert ids_in_line("parked", line) == [5, 3, 2, 1, 4]
    assert ids_in_line("pass", line) == [5, 3, 2, 1, 4]


def test_endless_chats_hold_off_nobody_who_came_before_their_park() -> None:
    endless = waiting(2, 2, 3)
    endless.is_endless = True
    assert ids_in_line("parked", [waiting(3, 3), endless, waiting(1, 1)]) == [1, 2, 3]


def test_only_pass_lets_anybody_pass() -> None:
    assert PASSING == {"pass"} <= set(LINE_ORDERS)


def test_ties_go_to_the_later_arrival() -> None:
    assert victims([A, holding(5, 100), holding(4, 100)]) == [5]


def test_the_leader_is_the_largest_of_the_highest_tier() -> None:
    assert leader([A, B, holding(9, 10, priority=1)]).seq_id == 9  # type: ignore[union-attr]
    assert leader([]) is None


def test_a_lone_sequence_is_never_a_victim() -> None:
    assert victims([A]) == []


def test_without_a_single_gain_the_smallest_set_of_sharers_goes_together() -> None:
    for seq, pages in ((A, [9]), (B, [1, 2]), (C, [1, 2])):
        seq.table = [PageId(p) for p in pages]
    try:
        assert victims([A, B, C], gain=lambda s: 0) == [2, 3]
    finally:
        for seq in (A, B, C):
            seq.table = []
