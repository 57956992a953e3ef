"""How virtual time passes, and how copies keep to it."""

from dataclasses import replace

import pytest

from kvalet.core.plan import (
    Direction,
    Draw,
    FinishReason,
    Grant,
    HostId,
    PageId,
    Phase,
    SeqId,
    StateSave,
    StepPlan,
    Transfer,
    TransferId,
)
from kvalet.core.request import SamplingParams
from kvalet.engine.base import EngineInfo
from kvalet.errors import EngineError
from kvalet.sim.costs import CostModel
from kvalet.sim.engine import POLL_S, CostEngine
from tests.sim.builders import NOTHING

INFO = EngineInfo(64, 1, 1, 512, b"x" * 32)
COSTS = replace(NOTHING, step_s=1.0, host_s=0.5)
PACE_SHARE = 0.04


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step of one second: figures here are made for it."""
    monkeypatch.setattr("kvalet.sim.copier.PACE_SHARE", PACE_SHARE)


def _engine(costs: CostModel, *, asynchronous: bool = True) -> CostEngine:
    engine = CostEngine(costs, INFO, asynchronous=asynchronous)
    engine.expect(SeqId(0), 3)
    return engine


def _computing(index: int = 0, *transfers: Transfer | StateSave) -> StepPlan:
    draw = Draw(SamplingParams(), index)
    grant = Grant(SeqId(0), Phase.DECODE, 10 + index, (1,), (PageId(0),), (draw,))
    return StepPlan(index, grants=(grant,), transfers=transfers)


def _copy(number: int, num_pages: int, direction: Direction = Direction.OUT) -> Transfer:
    moves = tuple((PageId(i), HostId(i)) for i in range(num_pages))
    return Transfer(TransferId(number), SeqId(1), direction, moves)


def test_a_step_takes_what_it_costs() -> None:
    engine = _engine(COSTS)
    outcome = engine.execute(_computing())
    assert (outcome.compute_s, engine.now) == (1.0, 1.5)
    assert list(outcome.sampled) == [SeqId(0)]


def test_an_answer_ends_with_its_last_token() -> None:
    engine = _engine(COSTS)
    finished = [engine.execute(_computing(index)).finished for index in range(3)]
    assert finished == [{}, {}, {SeqId(0): FinishReason.EOS}]


def test_a_step_without_work_is_a_look_at_the_copies() -> None:
    engine = _engine(COSTS)
    assert engine.execute(StepPlan(1)).compute_s == 0
    assert engine.now == POLL_S


def _seconds_of_copies(engine: CostEngine, count: int) -> list[float]:
    """Beside each of as many steps that compute."""
    return [engine.execute(_computing(index)).copy_s for index in range(count)]


def test_a_copy_goes_on_beside_the_steps_that_follow() -> None:
    engine = _engine(replace(COSTS, page_out_s=0.01))
    outcomes = [
        engine.execute(_computing(0, _copy(7, 7))),
        engine.execute(_computing(1)),
        engine.execute(_computing(2)),
    ]
    assert [outcome.landed for outcome in outcomes] == [(), (), (7,)]
    assert sum(outcome.copy_s for outcome in outcomes) == pytest.approx(0.07)


def test_a_step_bears_copies_for_a_share_of_its_time() -> None:
    """Its own time is not known before it: none is borne beside the first."""
    engine = _engine(replace(COSTS, page_in_s=0.001))
    engine.execute(_computing(0, _copy(1, 100, Direction.IN)))
    assert _seconds_of_copies(engine, 4) == pytest.approx([PACE_SHARE, PACE_SHARE, 0.02, 0])


def test_time_that_nobody_used_is_not_kept() -> None:
    engine = _engine(replace(COSTS, page_in_s=0.001))
    _seconds_of_copies(engine, 3)
    engine.execute(_computing(0, _copy(1, 200, Direction.IN)))
    # The first of these begins with what the one before it left between them.
    assert _seconds_of_copies(engine, 2) == pytest.approx([2 * PACE_SHARE, PACE_SHARE])


def test_time_that_was_overdrawn_is_owed() -> None:
    """A page is copied whole: one that takes as long as three steps bear delays the next."""
    engine = _engine(replace(COSTS, page_out_s=3 * PACE_SHARE))
    engine.execute(_computing(0, _copy(1, 3)))
    pages = [round(s / (3 * PACE_SHARE)) for s in _seconds_of_copies(engine, 8)]
    assert pages == [1, 0, 0, 1, 0, 0, 1, 0]


def test_the_shortest_of_the_last_steps_counts() -> None:
    """Beside a long prompt no more is copied than beside a chat that generates."""
    engine = _engine(replace(COSTS, prefill_cell_s=0.02, page_out_s=0.001))
    engine.execute(_computing(0))
    prompt = Grant(SeqId(0), Phase.PREFILL, 0, (1,) * 99, (PageId(0),))
    long_step = StepPlan(1, grants=(prompt,))
    assert engine.execute(long_step).compute_s == pytest.approx(100.0)
    engine.execute(replace(long_step, transfers=(_copy(1, 200),)))
    seconds = [engine.execute(long_step).copy_s for _ in range(2)]
    assert seconds == pytest.approx([2 * PACE_SHARE, PACE_SHARE])


def test_copies_go_as_fast_as_they_can_when_nobody_computes() -> None:
    engine = _engine(replace(COSTS, page_out_s=POLL_S / 50))
    engine.execute(StepPlan(1, transfers=(_copy(1, 50),)))
    assert engine.execute(StepPlan(2)).landed == (1,)


def test_transfers_land_in_their_order_and_a_fence_behind_them() -> None:
    engine = _engine(replace(COSTS, page_out_s=0.01, page_in_s=0.02))
    plan = _computing(0, _copy(1, 2), _copy(2, 0), _copy(3, 1, Direction.IN))
    assert engine.execute(plan).landed == ()
    assert engine.execute(_computing(1)).landed == (1, 2, 3)


def test_a_fence_with_nothing_before_it_lands_at_once() -> None:
    assert _engine(COSTS).execute(_computing(0, _copy(4, 0))).landed == (4,)


def test_copies_make_the_step_beside_them_longer() -> None:
    engine = _engine(replace(COSTS, page_out_s=0.01, beside_share=0.5))
    engine.execute(_computing(0, _copy(1, 10)))
    assert engine.execute(_computing(1)).compute_s == pytest.approx(1.0 + 0.5 * PACE_SHARE)


def test_synchronous_copies_are_waited_for() -> None:
    engine = _engine(replace(COSTS, page_out_s=0.25), asynchronous=False)
    outcome = engine.execute(_computing(0, _copy(1, 20)))
    assert outcome.landed == (1,)
    assert engine.now == 1.0 + 20 * 0.25 + 0.5
    assert outcome.compute_s == 1.0


def test_state_files_are_not_simulated() -> None:
    save = StateSave(TransferId(1), "file", (), ())
    with pytest.raises(EngineError, match="state files"):
        _engine(COSTS).execute(_computing(0, save))
