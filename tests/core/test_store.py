"""HostStore: pages counted once, buffers reused once nobody pins them."""

import pytest

from kvalet.core.plan import SeqId
from kvalet.core.sequence import PageName
from kvalet.core.store import HostStore
from kvalet.errors import InvariantViolation

NAME = PageName(b"shared")
TOKENS = [1, 2, 3]


def test_a_page_pinned_twice_is_held_once() -> None:
    store = HostStore(budget_pages=1)
    first, second = store.pin(NAME, TOKENS), store.pin(NAME, TOKENS)
    assert first is second
    assert store.num_held == 1
    store.unpin(first)
    assert store.num_held == 1
    store.unpin(first)
    assert store.num_held == 0


def test_the_budget_counts_only_what_is_new() -> None:
    store = HostStore(budget_pages=2)
    store.pin(NAME, TOKENS)
    assert store.has_room_for([NAME, (SeqId(1), 0)])
    assert not store.has_room_for([NAME, (SeqId(1), 0), (SeqId(1), 1)])
    assert HostStore(None).has_room_for([(SeqId(1), i) for i in range(99)])


def test_a_lost_page_is_copied_again_by_the_next_to_park() -> None:
    store = HostStore(None)
    lost = store.pin(NAME, TOKENS)
    store.lose(lost)
    again = store.pin(NAME, TOKENS)
    assert again is not lost
    assert again.pins == 1
    store.unpin(lost)
    assert store.pin(NAME, TOKENS) is again


def test_a_buffer_is_reused_only_when_nobody_pins_it() -> None:
    store = HostStore(None)
    page = store.pin(NAME, TOKENS)
    store.pin_again(page)
    store.unpin(page)
    assert store.pin((SeqId(1), 0), TOKENS).host_id != page.host_id
    store.unpin(page)
    assert store.pin((SeqId(1), 1), TOKENS).host_id == page.host_id


def test_unpinning_what_nobody_pins_is_refused() -> None:
    store = HostStore(None)
    page = store.pin(NAME, TOKENS)
    store.unpin(page)
    with pytest.raises(InvariantViolation):
        store.unpin(page)
