"""Who is parked (SPEC P2): never the leader, only who gains, and the policy's order among them."""

from collections.abc import Callable

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


def test_furthest_weighs_what_is_held_against_what_may_still_come() -> None:
    """Little to bring back, much to generate; who has no limit before who has one."""
    limits = {3: 40, 5: 700, 6: 500, 7: None}
    held = {3: 900, 5: 500, 6: 200, 7: 800}
    seqs = [holding(seq_id, held[seq_id]) for seq_id in limits]
    for seq in seqs:
        seq.max_new_tokens = limits[seq.seq_id]
    assert sorted(seqs, key=VICTIM_POLICIES["furthest"]) == [seqs[i] for i in (3, 2, 1, 0)]
    seqs[1].tokens += [0] * 400  # of its 700
    assert sorted(seqs, key=VICTIM_POLICIES["furthest"]) == [seqs[i] for i in (3, 2, 1, 0)]
    seqs[1].tokens += [0] * 1
    seqs[2].max_new_tokens = 10
    assert sorted(seqs, key=VICTIM_POLICIES["furthest"]) == [seqs[i] for i in (3, 2, 1, 0)]


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
