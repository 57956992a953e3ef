"""PagePool against a plain model: who holds what, what is found, what is evicted first."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvalet.core.pages import PagePool
from kvalet.core.plan import PAGE_CELLS, PageId
from kvalet.core.sequence import PageName, page_name
from kvalet.errors import InvariantViolation

NUM_PAGES = 6
CONTENTS = [[salt] * PAGE_CELLS for salt in range(4)]
NAMES = [page_name(b"root", content) for content in CONTENTS]


class PoolMachine(RuleBasedStateMachine):
    """Holders are lists of pages; the model keeps their count and the names by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.holders: list[list[PageId]] = []

    @precondition(lambda self: self.pool.num_clear > 0)
    @rule()
    def take(self) -> None:
        page = self.pool.take()
        assert all(page not in held for held in self.holders)
        assert not self.pool.is_named(page)
        self.holders.append([page])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.release_all(table)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), which=st.integers(0, len(NAMES) - 1))
    def publish(self, data: st.DataObject, which: int) -> None:
        table = data.draw(st.sampled_from(self.holders))
        if self.pool.is_named(table[0]):
            return
        found = self.pool.find(NAMES[which], CONTENTS[which])
        table[0] = self.pool.publish(table[0], NAMES[which], CONTENTS[which])
        assert found in (None, table[0])
        assert self.pool.find(NAMES[which], CONTENTS[which]) == table[0]

    @rule(which=st.integers(0, len(NAMES) - 1))
    def share(self, which: int) -> None:
        page = self.pool.find(NAMES[which], CONTENTS[which])
        if page is not None:
            self.pool.hold(page)
            self.holders.append([page])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.holders))[0]
        self.pool.forget(page)
        assert not self.pool.is_named(page)

    @invariant()
    def adds_up(self) -> None:
        self.pool.check(self.holders)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=40)


def test_eviction_takes_the_end_of_the_least_recently_used_chain() -> None:
    pool = PagePool(4)
    old, new = [pool.take(), pool.take()], [pool.take(), pool.take()]
    for page, name, content in zip([*old, *new], NAMES, CONTENTS, strict=True):
        pool.publish(page, name, content)
    expected = [old[1], old[0], new[1], new[0]]
    pool.release_all(old)
    pool.release_all(new)
    assert pool.num_cached == 4
    assert [pool.take() for _ in range(4)] == expected


def test_a_page_that_was_only_lent_makes_room_when_it_would_have_anyway() -> None:
    """A copy holds a page for a while; that is not a use of it."""
    pool = PagePool(4)
    pages = [pool.take() for _ in range(4)]
    for page, name, content in zip(pages, NAMES, CONTENTS, strict=True):
        pool.publish(page, name, content)
        pool.release(page)
    assert pool.take_newly_cached() == tuple(pages)
    for lent in (pages[2:], pages[:2]):
        for page in lent:
            pool.hold(page)
        pool.give_back(lent)
        pool.check([])
    assert pool.take_newly_cached() == ()
    assert [pool.take() for _ in range(4)] == pages


def test_a_page_used_again_and_again_is_still_evicted_in_its_turn() -> None:
    pool = PagePool(2)
    pages = [pool.take(), pool.take()]
    for page, name, content in zip(pages, NAMES, CONTENTS, strict=False):
        pool.publish(page, name, content)
        pool.release(page)
    for _ in range(30):
        pool.hold(pages[0])
        pool.release(pages[0])
        pool.check([])
    assert [pool.take(), pool.take()] == [pages[1], pages[0]]


def test_find_compares_the_ids_and_not_only_the_hash() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.publish(page, PageName(b"collision"), CONTENTS[0])
    assert pool.find(PageName(b"collision"), CONTENTS[0]) == page
    assert pool.find(PageName(b"collision"), CONTENTS[1]) is None


def test_a_colliding_page_takes_the_name_over() -> None:
    pool = PagePool(3)
    first, second = pool.take(), pool.take()
    pool.publish(first, PageName(b"collision"), CONTENTS[0])
    assert pool.publish(second, PageName(b"collision"), CONTENTS[1]) == second
    assert pool.find(PageName(b"collision"), CONTENTS[1]) == second
    assert not pool.is_named(first)
    pool.check([[first], [second]])


def test_freed_pages_are_reported_once() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.release(page)
    assert pool.take_freed() == (page,)
    assert pool.take_freed() == ()


def test_release_of_an_unheld_page_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="page 1"):
        PagePool(2).release(PageId(1))


def test_check_names_the_page_that_leaks() -> None:
    pool = PagePool(2)
    page = pool.take()
    with pytest.raises(InvariantViolation, match=f"page {page} counts 1 holders, has 0"):
        pool.check([])
