"""What the fake engine does beyond the contract, so that tests of the scheduler find its faults."""

import pytest

from kvalet.core.plan import (
    Direction,
    Fault,
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
from kvalet.engine.fake import FakeEngine, Faults
from kvalet.errors import EngineError
from tests.engine.contract import PROMPT, Steps, back, grant, hosts, out, table


@pytest.mark.parametrize("tier", Tier)
def test_a_place_that_was_freed_is_not_read(tier: Tier) -> None:
    """Not even by a copy that was started before."""
    step = Steps(FakeEngine(4, transfer_steps=1))
    places = hosts([0], tier)
    step.transfer(out(1, table(0), places))
    step.run(StepPlan(0, transfers=(back(2, table(1), places),)))
    with pytest.raises(EngineError, match="holds nothing"):
        step.run(StepPlan(0, host_freed=places))


def test_a_place_that_was_never_filled_is_not_saved() -> None:
    save = StateSave(TransferId(1), "state", (), (HostId(0),))
    with pytest.raises(EngineError, match="holds nothing"):
        Steps(FakeEngine(4)).transfer(save)


def test_copies_that_get_faster_still_land_in_order() -> None:
    engine = FakeEngine(4, transfer_steps=3)
    step = Steps(engine)
    step.run(StepPlan(0, transfers=(out(1, table(0), hosts([0])),)))
    engine.transfer_steps = 0
    step.transfer(out(2, table(0), hosts([1])))
    assert step.landed == [1, 2]


def test_faults_are_of_copies_of_pages_only() -> None:
    step = Steps(FakeEngine(4, faults=Faults(transfer=lambda transfer: "broken")))
    step(grant(PROMPT[:32], table(0)))
    step.transfer(
        out(1, table(0), hosts([0])),
        Transfer(TransferId(2), SeqId(1), Direction.OUT, ()),
        StateSave(TransferId(3), "state", PROMPT[:32], (PageId(0),)),
        StateLoad(TransferId(4), "state", PROMPT[:32], ((0, HostId(1)),)),
    )
    assert (step.landed, step.failed) == ([2, 3, 4], {1: Fault("broken")})


def test_state_files_wait_for_the_copies_of_pages() -> None:
    step = Steps(FakeEngine(4, transfer_steps=2))
    step(grant(PROMPT[:32], table(0)))
    save = StateSave(TransferId(1), "state", PROMPT[:32], table(0))
    step.run(StepPlan(0, transfers=(save,)))
    step.run(StepPlan(0, transfers=(out(2, table(0), hosts([0])),)))
    step.transfer(out(3, table(0), hosts([1])))
    step.until_over(save)
    assert step.landed == [2, 3, 1]
