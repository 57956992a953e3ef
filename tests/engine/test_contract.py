"""What every engine promises (`engine/base.py`), on the fake one and the real one."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from kvalet.core.plan import (
    PAGE_CELLS,
    Draw,
    Grant,
    PageCopy,
    PageId,
    PageShift,
    Phase,
    SeqId,
    StepOutcome,
    StepPlan,
)
from kvalet.core.request import SamplingParams
from kvalet.engine.base import DrawMask, Engine
from kvalet.errors import EngineError
from tests.engine.contract import GREEDY, PROMPT, Steps, generate, grant, last_row, table


def test_the_same_plan_gives_the_same_tokens(engine: Engine) -> None:
    step = Steps(engine)
    assert generate(step, table(0, 1, 2)) == generate(step, table(0, 1, 2))


@pytest.mark.parametrize("chunk", [1, 7, 32, 64])
def test_chunks_change_nothing(engine: Engine, chunk: int) -> None:
    step = Steps(engine)
    assert generate(step, table(3, 4, 5), chunk=chunk) == generate(step, table(0, 1, 2))


def test_which_pages_they_are_changes_nothing(engine: Engine) -> None:
    step = Steps(engine)
    assert generate(step, table(23, 0, 11)) == generate(step, table(0, 1, 2))


def test_neighbours_change_nothing(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2))
    other = Grant(SeqId(2), Phase.PREFILL, 0, PROMPT[:20], table(9), (Draw(GREEDY, 0),))
    tokens = list(PROMPT)
    outcome = step(other, grant(PROMPT, table(3, 4, 5), draw=0))
    for index in range(8):
        token = outcome.sampled[SeqId(1)][0].token
        assert token == expected[index]
        tokens.append(token)
        mine = grant((token,), table(3, 4, 5), len(tokens) - 1, draw=index + 1)
        outcome = step(replace(other, tokens=PROMPT[: 20 + index]), mine)


def test_several_rows_of_a_grant_draw_what_single_steps_would(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2), count=3)
    step(grant(PROMPT[:74], table(3, 4, 5)))
    draws = tuple(Draw(GREEDY, index) for index in range(3))
    rows = replace(grant((PROMPT[74], *expected[:2]), table(3, 4, 5), 74), draws=draws)
    assert [sampled.token for sampled in step(rows).sampled[SeqId(1)]] == expected


def test_a_shared_page_serves_both(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2))
    first = step(grant(PROMPT[64:], table(0, 1, 5), 64, draw=0))
    assert first.sampled[SeqId(1)][0].token == expected[0]


def test_a_copied_page_is_the_same_page(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2), count=1)
    step(grant(PROMPT[:74], table(3, 4, 5)))
    copy = PageCopy(PageId(5), PageId(9))
    plan = StepPlan(0, page_copies=(copy,), grants=(last_row(table(3, 4, 9)),))
    outcome = step.run(plan)
    assert outcome.sampled[SeqId(1)][0].token == expected[0]


def test_a_shift_changes_its_pages_and_no_others(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2), count=4)
    assert generate(step, table(3, 4, 5), count=4) == expected
    shift = PageShift(table(4), -PAGE_CELLS)
    step.run(StepPlan(0, page_shifts=(shift,)))
    last = grant(PROMPT[64:], table(0, 1, 6), 64, draw=0)
    assert step(last).sampled[SeqId(1)][0].token == expected[0]
    drawn = [
        step(grant(PROMPT[64 : 65 + i], table(3, 4, 7), 64, draw=0)).sampled[SeqId(1)][0].token
        for i in range(11)
    ]
    fresh = [
        step(grant(PROMPT[64 : 65 + i], table(0, 1, 7), 64, draw=0)).sampled[SeqId(1)][0].token
        for i in range(11)
    ]
    assert drawn != fresh


def test_an_empty_plan_is_a_step_without_effect(engine: Engine) -> None:
    assert Steps(engine)() == StepOutcome()


@pytest.mark.parametrize(("index", "seed"), [(0, 1), (1, 0)])
def test_a_draw_is_keyed_by_seed_and_index(engine: Engine, index: int, seed: int) -> None:
    """Over many tokens: one may coincide by chance."""
    step = Steps(engine)

    def drawn(seed: int, first: int) -> list[int]:
        warm = SamplingParams(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        step(grant(PROMPT[:74], table(0, 1, 2)))
        outcomes = [
            step(replace(grant(PROMPT[74:], table(0, 1, 2), 74), draws=(Draw(warm, first + i),)))
            for i in range(12)
        ]
        return [outcome.sampled[SeqId(1)][0].token for outcome in outcomes]

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(seed, index)


def mask_of(engine: Engine, allowed: Iterable[int], seq_id: int = 1, index: int = 0) -> DrawMask:
    bits = bytearray(-(-engine.info.num_vocab // 8))
    for token in allowed:
        bits[token // 8] |= 1 << token % 8
    return DrawMask(SeqId(seq_id), index, bytes(bits))


WARM = SamplingParams(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_a_mask_leaves_nothing_else_to_draw(engine: Engine, params: SamplingParams) -> None:
    step = Steps(engine)
    step(grant(PROMPT[:74], table(0, 1, 2)))
    last = replace(last_row(table(0, 1, 2)), draws=(Draw(params, 0),))
    for token in (0, 7, 8, engine.info.num_vocab - 1):
        assert step(last, masks=[mask_of(engine, [token])]).sampled[SeqId(1)][0].token == token
    free = step(last).sampled[SeqId(1)][0].token
    everything = mask_of(engine, range(engine.info.num_vocab))
    assert step(last, masks=[everything]).sampled[SeqId(1)][0].token == free
    others = mask_of(engine, {*range(engine.info.num_vocab)} - {free})
    assert step(last, masks=[others]).sampled[SeqId(1)][0].token != free


def test_a_mask_is_its_own_draw_s(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2), count=3)
    step(grant(PROMPT[:74], table(3, 4, 5)))
    draws = tuple(Draw(GREEDY, index) for index in range(3))
    rows = replace(grant((PROMPT[74], *expected[:2]), table(3, 4, 5), 74), draws=draws)
    other = replace(last_row(table(0, 1, 2)), seq_id=SeqId(2))
    outcome = step(rows, other, masks=[mask_of(engine, [9], index=1)])
    assert [drawn.token for drawn in outcome.sampled[SeqId(1)]] == [expected[0], 9, expected[2]]
    assert outcome.sampled[SeqId(2)][0].token == expected[0]


def test_a_sequence_that_may_draw_nothing_fails_alone(engine: Engine) -> None:
    step = Steps(engine)
    step(grant(PROMPT[:74], table(0, 1, 2)))
    last = last_row(table(0, 1, 2))
    outcome = step(last, replace(last, seq_id=SeqId(2)), masks=[mask_of(engine, [])])
    assert set(outcome.failed) == {SeqId(1)}
    assert set(outcome.sampled) == {SeqId(2)}


def test_more_tokens_than_a_step_takes_are_refused_without_harm(engine: Engine) -> None:
    step = Steps(engine)
    tokens = tuple([5] * (engine.info.max_step_tokens + 1))
    with pytest.raises(EngineError):
        step(grant(tokens, table(*range(17))))
    assert generate(step, table(0, 1, 2), count=1) == generate(step, table(3, 4, 5), count=1)


def test_close_may_be_called_twice(engine: Engine) -> None:
    engine.close()
    engine.close()
