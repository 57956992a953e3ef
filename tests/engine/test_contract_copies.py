"""What every engine promises of copies (`core/plan.py`), on the fake one and the real one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvalet.core.plan import (
    Direction,
    HostId,
    PageId,
    SeqId,
    StateLoad,
    StateSave,
    StepPlan,
    Tier,
    Transfer,
    TransferId,
)
from kvalet.engine.base import Engine
from kvalet.engine.fake import UNUSED, FakeEngine, StateFile
from kvalet.engine.host.statefile import pages_offset
from tests.engine.contract import (
    PROMPT,
    Steps,
    back,
    generate,
    grant,
    hosts,
    last_row,
    out,
    table,
)

TOKENS = PROMPT[:64]  # of two whole pages
TIERS = pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.value)


@pytest.fixture
def step(engine: Engine) -> Steps:
    return Steps(engine)


@TIERS
def test_out_and_in_bring_back_every_bit(step: Steps, tier: Tier) -> None:
    expected = generate(step, table(0, 1, 2))
    homes = [table(3, 4, 5), table(6, 7, 8)]

    def park(index: int) -> tuple[PageId, ...]:
        here, away = homes[(index - 1) % 2], homes[index % 2]
        step.transfer(out(2 * index, here, hosts(range(3), tier)))
        step.transfer(back(2 * index + 1, away, hosts(range(3), tier)), freed=here)
        return away

    assert generate(step, homes[0], between=park) == expected
    assert not step.failed


def test_transfers_start_after_the_rows_of_their_step(step: Steps) -> None:
    expected = generate(step, table(0, 1, 2), count=1)
    away = out(1, table(3, 4, 5), hosts(range(3)))
    step.run(StepPlan(0, grants=(grant(PROMPT[:74], table(3, 4, 5)),), transfers=(away,)))
    step.until_over(away)
    step.transfer(back(2, table(6, 7, 8), hosts(range(3))), freed=table(3, 4, 5))
    assert step(last_row(table(6, 7, 8))).sampled[SeqId(1)][0].token == expected[0]


def test_transfers_land_in_the_order_in_which_they_were_started(step: Steps) -> None:
    """A transfer without moves lands when all before it have, and not later ones."""
    generate(step, table(0, 1, 2), count=1)
    state = StateSave(TransferId(3), "nowhere/state", (), ())
    fence = Transfer(TransferId(4), None, Direction.OUT, ())
    many = tuple(PageId(0) for _ in range(20))
    step.run(StepPlan(0, transfers=(out(2, many, hosts(range(20))),)))
    step.run(StepPlan(0, transfers=(state, fence, out(1, table(1), hosts([30])))))
    step.transfer(back(5, table(9), hosts([30])))
    assert [t for t in step.landed if t != 3] == [2, 4, 1, 5]


def test_a_place_freed_and_used_again_in_one_plan_holds_the_new_page(step: Steps) -> None:
    expected = generate(step, table(0, 1, 2), count=1)
    for tier in Tier:
        places = hosts(range(3), tier)
        step.transfer(out(1, table(9, 9, 9), places))
        step.transfer(out(2, table(0, 1, 2), places), host_freed=places)
        step.transfer(back(3, table(6, 7, 8), places))
        step.transfer(host_freed=places)
        assert step(last_row(table(6, 7, 8))).sampled[SeqId(1)][0].token == expected[0]
        step.landed.clear()
    assert not step.failed


def test_copies_in_flight_change_nothing_for_those_who_compute(step: Steps) -> None:
    """Nor do these change the copies. What is copied is more than fits beside one step."""
    expected = generate(step, table(0, 1, 2))
    step(grant(PROMPT[:74], table(3, 4, 5)))
    places = [hosts(range(3 * copy, 3 * copy + 3)) for copy in range(12)]
    home = table(6, 7, 8)

    def copies(index: int) -> None:
        transfers = tuple(
            out(100 * index + copy, table(3, 4, 5), place) for copy, place in enumerate(places)
        )
        step.run(StepPlan(0, transfers=(*transfers, back(100 * index + 50, home, places[-1]))))

    assert generate(step, table(9, 10, 11), between=copies) == expected
    step.transfer(Transfer(TransferId(1), None, Direction.OUT, ()))
    assert step(last_row(home)).sampled[SeqId(1)][0].token == expected[0]
    assert not step.failed


@TIERS
def test_a_saved_state_is_loaded_with_every_bit(step: Steps, tmp_path: Path, tier: Tier) -> None:
    """One page from the pool, one from the host store; the second one is loaded first."""
    expected = generate(step, table(0, 1, 2), count=1)
    path = str(tmp_path / "state")
    step.transfer(out(1, table(1), hosts([7], tier)))
    save = StateSave(TransferId(2), path, TOKENS, (PageId(0), HostId(7, tier)))
    step.transfer(save)
    moves = ((1, HostId(9, tier)), (0, HostId(7, tier)))
    load = StateLoad(TransferId(3), path, TOKENS, moves)
    step.transfer(load, freed=table(0, 1), host_freed=hosts([7], tier))
    step.transfer(back(4, table(5, 4), hosts([9, 7], tier)))
    step(grant(PROMPT[64:74], table(4, 5, 6), 64))
    assert step(last_row(table(4, 5, 6))).sampled[SeqId(1)][0].token == expected[0]
    assert not step.failed


Spoil = Callable[[Engine, str], None]


def replaced(engine: Engine, path: str) -> None:
    step = Steps(engine)
    step.transfer(StateSave(TransferId(90), path, TOKENS[::-1], (PageId(3), PageId(4))))


def damaged(engine: Engine, path: str) -> None:
    """A byte in the second page."""
    if isinstance(engine, FakeEngine):
        state = engine.files[path]
        engine.files[path] = StateFile(state.tokens, (state.pages[0], (UNUSED,)))
        return
    with Path(path).open("r+b") as file:
        file.seek(pages_offset(2, 64) + engine.info.page_bytes + 99)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def removed(engine: Engine, path: str) -> None:
    if isinstance(engine, FakeEngine):
        del engine.files[path]
    else:
        Path(path).unlink()


@pytest.mark.parametrize("spoil", [replaced, damaged, removed])
def test_a_state_that_is_not_the_one_expected_fails_alone(
    step: Steps, tmp_path: Path, spoil: Spoil
) -> None:
    expected = generate(step, table(0, 1, 2), count=1)
    path = str(tmp_path / "state")
    save = StateSave(TransferId(1), path, TOKENS, table(0, 1))
    step.transfer(save, out(2, table(0, 1, 2), hosts(range(3))))
    spoil(step.engine, path)
    load = StateLoad(TransferId(3), path, TOKENS, ((0, HostId(8)), (1, HostId(9))))
    step.transfer(load, back(4, table(6, 7, 8), hosts(range(3))))
    assert set(step.failed) == {3}
    assert "state" in step.failed[TransferId(3)].message
    assert step(last_row(table(6, 7, 8))).sampled[SeqId(1)][0].token == expected[0]


def test_a_save_replaces_an_older_one(step: Steps, tmp_path: Path) -> None:
    generate(step, table(0, 1, 2), count=1)
    path = str(tmp_path / "state")
    replaced(step.engine, path)
    step.transfer(StateSave(TransferId(1), path, TOKENS, table(0, 1)))
    moves = ((0, HostId(0)), (1, HostId(1)))
    step.transfer(StateLoad(TransferId(2), path, TOKENS, moves))
    assert step.landed == [1, 2]


def test_close_with_copies_in_flight(step: Steps, tmp_path: Path) -> None:
    generate(step, table(0, 1, 2), count=1)
    pages = tuple(PageId(0) for _ in range(200))
    for tier in Tier:
        step.run(StepPlan(0, transfers=(out(1, pages, hosts(range(200), tier)),)))
    path = str(tmp_path / "state")
    step.run(StepPlan(0, transfers=(StateSave(TransferId(2), path, (), pages),)))
    step.engine.close()
    step.engine.close()
    assert {file.name for file in tmp_path.iterdir()} <= {"state"}
