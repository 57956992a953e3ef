"""What every engine promises (`engine/base.py`), on the fake one and the real one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvalet.core.plan import (
    PAGE_CELLS,
    Direction,
    Draw,
    Grant,
    HostId,
    PageCopy,
    PageId,
    PageShift,
    SamplingParams,
    SeqId,
    StepOutcome,
    StepPlan,
    Transfer,
    TransferId,
    pages_for,
)
from kvalet.engine.base import Engine
from kvalet.engine.fake import FakeEngine
from kvalet.engine.ggml.engine import load_engine
from kvalet.errors import EngineError
from tests.engine.tiny_models import write_tiny_llama

NUM_PAGES = 24
GREEDY = SamplingParams(temperature=0.0)
PROMPT = tuple((i * 37 + 5) % 200 + 20 for i in range(75))


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(params=["fake", pytest.param("ggml", marks=pytest.mark.native)])
def engine(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Engine]:
    made: Engine = (
        FakeEngine(NUM_PAGES)
        if request.param == "fake"
        else load_engine(
            tiny_model, num_pages=NUM_PAGES, threads=2, max_step_tokens=512, poison=True
        )
    )
    yield made
    made.close()


class Steps:
    """Numbers plans, and keeps the last outcome."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.count = 0

    def __call__(
        self,
        *grants: Grant,
        transfers: tuple[Transfer, ...] = (),
        freed: tuple[PageId, ...] = (),
        page_copies: tuple[PageCopy, ...] = (),
        page_shifts: tuple[PageShift, ...] = (),
    ) -> StepOutcome:
        self.count += 1
        plan = StepPlan(self.count, freed, page_copies, page_shifts, grants, transfers)
        return self.engine.execute(plan)


def table(*pages: int) -> tuple[PageId, ...]:
    return tuple(PageId(page) for page in pages)


def grant(
    tokens: tuple[int, ...], pages: tuple[PageId, ...], start: int = 0, *, draw: int | None = None
) -> Grant:
    pages = pages[: pages_for(start + len(tokens))]
    return Grant(SeqId(1), start, tokens, pages, None if draw is None else Draw(GREEDY, draw))


def generate(
    step: Steps,
    pages: tuple[PageId, ...],
    count: int = 8,
    chunk: int = 512,
    between: Callable[[int], tuple[PageId, ...] | None] = lambda index: None,
) -> list[int]:
    """`count` tokens after PROMPT; `between` runs before each decode and may give a new table."""
    tokens, done = list(PROMPT), 0
    drawn: list[int] = []
    while len(drawn) < count:
        part = tuple(tokens[done : done + chunk])
        is_last = done + len(part) == len(tokens)
        outcome = step(grant(part, pages, done, draw=len(drawn) if is_last else None))
        assert not outcome.failed
        assert (SeqId(1) in outcome.sampled) == is_last
        done += len(part)
        if is_last:
            drawn.append(outcome.sampled[SeqId(1)].token)
            tokens.append(drawn[-1])
            pages = between(len(drawn)) or pages
    return drawn


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
    other = Grant(SeqId(2), 0, PROMPT[:20], table(9), Draw(GREEDY, 0))
    tokens = list(PROMPT)
    outcome = step(other, grant(PROMPT, table(3, 4, 5), draw=0))
    for index in range(8):
        token = outcome.sampled[SeqId(1)].token
        assert token == expected[index]
        tokens.append(token)
        mine = grant((token,), table(3, 4, 5), len(tokens) - 1, draw=index + 1)
        outcome = step(replace(other, tokens=PROMPT[: 20 + index]), mine)


def test_a_shared_page_serves_both(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2))
    first = step(grant(PROMPT[64:], table(0, 1, 5), 64, draw=0))
    assert first.sampled[SeqId(1)].token == expected[0]


def test_out_and_in_bring_back_every_bit(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2))

    def park(index: int) -> tuple[PageId, ...]:
        away = [table(3, 4, 5), table(6, 7, 8)][index % 2]
        here = [table(3, 4, 5), table(6, 7, 8)][(index - 1) % 2]
        out = transfer(2 * index, Direction.OUT, here)
        assert step(transfers=(out,)).landed == (out.transfer_id,)
        back = transfer(2 * index + 1, Direction.IN, away)
        assert step(transfers=(back,), freed=here).landed == (back.transfer_id,)
        return away

    assert generate(step, table(3, 4, 5), between=park) == expected


def transfer(number: int, direction: Direction, pages: tuple[PageId, ...]) -> Transfer:
    moves = tuple((page, HostId(index)) for index, page in enumerate(pages))
    return Transfer(TransferId(number), SeqId(1), direction, moves)


def test_transfers_start_after_the_rows_of_their_step(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2), count=1)
    out = transfer(1, Direction.OUT, table(3, 4, 5))
    step(grant(PROMPT[:74], table(3, 4, 5)), transfers=(out,))
    step(transfers=(transfer(2, Direction.IN, table(6, 7, 8)),), freed=table(3, 4, 5))
    outcome = step(grant(PROMPT[74:], table(6, 7, 8), 74, draw=0))
    assert outcome.sampled[SeqId(1)].token == expected[0]


def test_a_copied_page_is_the_same_page(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2), count=1)
    step(grant(PROMPT[:74], table(3, 4, 5)))
    copy = PageCopy(PageId(5), PageId(9))
    outcome = step(grant(PROMPT[74:], table(3, 4, 9), 74, draw=0), page_copies=(copy,))
    assert outcome.sampled[SeqId(1)].token == expected[0]


def test_a_shift_changes_its_pages_and_no_others(engine: Engine) -> None:
    step = Steps(engine)
    expected = generate(step, table(0, 1, 2), count=4)
    assert generate(step, table(3, 4, 5), count=4) == expected
    shift = PageShift(table(4), -PAGE_CELLS)
    step(page_shifts=(shift,))
    last = grant(PROMPT[64:], table(0, 1, 6), 64, draw=0)
    assert step(last).sampled[SeqId(1)].token == expected[0]
    drawn = [
        step(grant(PROMPT[64 : 65 + i], table(3, 4, 7), 64, draw=0)).sampled[SeqId(1)].token
        for i in range(11)
    ]
    fresh = [
        step(grant(PROMPT[64 : 65 + i], table(0, 1, 7), 64, draw=0)).sampled[SeqId(1)].token
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
            step(replace(grant(PROMPT[74:], table(0, 1, 2), 74), draw=Draw(warm, first + i)))
            for i in range(12)
        ]
        return [outcome.sampled[SeqId(1)].token for outcome in outcomes]

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(seed, index)


def test_more_tokens_than_a_step_takes_are_refused_without_harm(engine: Engine) -> None:
    step = Steps(engine)
    tokens = tuple([5] * (engine.info.max_step_tokens + 1))
    with pytest.raises(EngineError):
        step(grant(tokens, table(*range(17))))
    assert generate(step, table(0, 1, 2), count=1) == generate(step, table(3, 4, 5), count=1)


def test_close_may_be_called_twice(engine: Engine) -> None:
    engine.close()
    engine.close()
