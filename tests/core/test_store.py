"""HostStore: pages counted once, budgets kept, places reused once nobody needs them."""

import pytest

from kvalet.core.plan import SeqId, Tier
from kvalet.core.sequence import PageName
from kvalet.core.store import HostBudget, HostKey, HostPage, HostStore
from kvalet.errors import InvariantViolation

NAME = PageName(b"shared")
TOKENS = [1, 2, 3]
RAM, DISK = Tier.RAM, Tier.DISK


def name(index: int) -> PageName:
    return PageName(b"page %d" % index)


def private(index: int) -> HostKey:
    return (SeqId(1), index)


def make(
    parked: int | None = None, disk: int = 0, cached: int | None = 0, landed: int = 0
) -> HostStore:
    """With `landed` cached pages, page 0 the least recently used."""
    store = HostStore(HostBudget(parked, disk, cached))
    for index in range(landed):
        fill(store, name(index))
    return store


def fill(store: HostStore, key: HostKey, tier: Tier = RAM) -> HostPage:
    """A page that was copied out, and that nobody needs any more."""
    page = store.pin(key, TOKENS, tier)
    page.is_landed = True
    store.unpin(page)
    return page


def test_a_page_pinned_twice_is_held_once() -> None:
    store = make(parked=1)
    first, second = store.pin(NAME, TOKENS, RAM), store.pin(NAME, TOKENS, RAM)
    assert first is second
    assert store.num_held == store.num_pinned == 1
    store.unpin(first)
    assert store.num_held == 1
    store.unpin(first)
    assert store.num_held == store.num_pinned == 0


def test_the_budget_counts_only_what_is_not_pinned_yet() -> None:
    store = make(parked=2)
    store.pin(NAME, TOKENS, RAM)
    assert store.tier_for([NAME, private(0)]) is RAM
    assert store.tier_for([NAME, private(0), private(1)]) is None
    assert make().tier_for([private(i) for i in range(99)]) is RAM


def test_what_is_pinned_already_costs_nothing_even_over_the_budget() -> None:
    store = make(parked=0)
    store.pin(NAME, TOKENS, RAM)
    assert store.tier_for([NAME]) is RAM
    assert store.tier_for([NAME, private(0)]) is None


def test_what_ram_does_not_hold_goes_to_disk_up_to_its_own_limit() -> None:
    store = make(parked=1, disk=2)
    store.pin(NAME, TOKENS, RAM)
    keys = [private(index) for index in range(3)]
    assert store.tier_for(keys[:2]) is DISK
    assert store.tier_for(keys) is None
    page = store.pin(keys[0], TOKENS, DISK)
    assert (store.num_held, store.num_on_disk, page.host_id.tier) == (1, 1, DISK)


def test_a_cached_page_that_ram_cannot_pin_is_copied_to_disk_instead() -> None:
    store = make(parked=0, disk=1, cached=9, landed=1)
    assert store.tier_for([name(0)]) is DISK
    page = store.pin(name(0), TOKENS, DISK)
    assert page.is_missing
    assert (store.num_held, store.num_on_disk) == (0, 1)
    store.check([page], [])


def test_pinning_a_cached_page_moves_it_from_one_budget_to_the_other() -> None:
    store = make(parked=1, cached=2, landed=2)
    page = store.pin(name(0), TOKENS, RAM)
    assert (store.num_pinned, store.num_cached) == (1, 1)
    assert not page.is_missing
    assert store.tier_for([name(1)]) is None
    store.check([page], [])


def test_a_named_page_stays_as_cache_when_nobody_needs_it() -> None:
    store = make(cached=1, landed=1)
    assert store.num_cached == 1
    found = store.find(name(0), TOKENS)
    assert found is not None
    assert store.find(name(0), [9, 9, 9]) is None


def test_a_page_without_a_name_or_on_disk_does_not() -> None:
    store = make(disk=9, cached=9)
    fill(store, private(0))
    fill(store, name(1), DISK)
    assert (store.num_held, store.num_on_disk) == (0, 0)


def test_the_least_recently_used_makes_room() -> None:
    store = make(cached=2, landed=2)
    used = store.pin(name(0), TOKENS, RAM)
    store.unpin(used)
    fill(store, name(2))
    assert [store.has(name(index)) for index in range(3)] == [True, False, True]


def test_a_page_that_a_copy_reads_does_not_make_room() -> None:
    store = make(cached=1, landed=1)
    page = store.find(name(0), TOKENS)
    assert page is not None
    store.start_copy(page)
    fill(store, name(1))
    assert store.has(name(0))
    store.end_copy(page)
    store.check([], [])


def test_a_page_copied_ahead_takes_free_room_only() -> None:
    store = make(cached=1)
    page = store.add_cached(NAME, TOKENS)
    assert page is not None
    store.start_copy(page)
    assert store.add_cached(NAME, TOKENS) is None
    assert store.add_cached(name(1), TOKENS) is None
    assert store.find(NAME, TOKENS) is None
    page.is_landed = True
    store.end_copy(page)
    assert store.find(NAME, TOKENS) is page


def test_a_copy_that_failed_leaves_nothing() -> None:
    store = make(cached=1)
    page = store.add_cached(NAME, TOKENS)
    assert page is not None
    store.start_copy(page)
    store.lose(page)
    store.end_copy(page)
    assert (store.num_held, store.has(NAME)) == (0, False)
    assert store.take_freed() == (page.host_id,)


def test_a_lost_page_is_copied_again_by_the_next_to_park() -> None:
    store = make()
    lost = store.pin(NAME, TOKENS, RAM)
    store.lose(lost)
    again = store.pin(NAME, TOKENS, RAM)
    assert again is not lost
    assert again.is_missing
    store.unpin(lost)
    assert store.pin(NAME, TOKENS, RAM) is again


def test_a_place_is_reused_only_when_nobody_needs_it() -> None:
    store = make()
    page = store.pin(NAME, TOKENS, RAM)
    store.start_copy(page)
    store.unpin(page)
    assert store.pin(private(0), TOKENS, RAM).host_id != page.host_id
    store.end_copy(page)
    assert store.pin(private(1), TOKENS, RAM).host_id == page.host_id


def test_the_lowest_free_place_is_used_first() -> None:
    store = make()
    pages = [store.pin(private(index), TOKENS, RAM) for index in range(6)]
    for index in (4, 1, 3):
        store.unpin(pages[index])
    again = [store.pin(private(10 + index), TOKENS, RAM) for index in range(4)]
    assert [page.host_id.place for page in again] == [1, 3, 4, 6]


def test_a_place_given_back_is_told_once_unless_it_is_used_again() -> None:
    store = make()
    page = fill(store, private(0))
    assert store.has_freed
    assert store.take_freed() == (page.host_id,)
    fill(store, private(0))
    store.pin(private(1), TOKENS, RAM)
    assert store.take_freed() == ()


def test_unpinning_what_nobody_pins_is_refused() -> None:
    store = make()
    page = fill(store, private(0))
    with pytest.raises(InvariantViolation):
        store.unpin(page)


def test_check_names_the_page_whose_pins_do_not_add_up() -> None:
    store = make()
    page = store.pin(NAME, TOKENS, RAM)
    store.check([page], [])
    with pytest.raises(InvariantViolation, match="pinned 0 times"):
        store.check([], [])
    with pytest.raises(InvariantViolation, match="copied 1 times"):
        store.check([page], [page])
