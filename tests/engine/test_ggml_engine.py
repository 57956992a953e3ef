"""What the engine refuses, and whom a fault concerns: one sequence or copy, not its neighbours."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvalet.core.plan import (
    Direction,
    Draw,
    Grant,
    HostId,
    PageCopy,
    PageId,
    Phase,
    SeqId,
    StepPlan,
    Tier,
    Transfer,
    TransferId,
)
from kvalet.core.request import SamplingParams
from kvalet.engine.base import PACE_STEPS
from kvalet.engine.ggml.engine import GgmlEngine, load_engine
from kvalet.errors import ConfigError, EngineError, EngineFatal
from kvalet.model.gguf import GGUFFile
from tests.engine.steps import chat, generate
from tests.engine.tiny_models import write_tiny_llama

pytestmark = pytest.mark.native

NUM_PAGES = 8
NAN_TOKEN = 500
GREEDY = Draw(SamplingParams(temperature=0.0), 0)
GOOD = Grant(SeqId(1), Phase.PREFILL, 0, (5, 6, 7), (PageId(2),), (GREEDY,))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its embedding of NAN_TOKEN is NaN, as in a damaged file."""
    path = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", weight_type="F32")
    with GGUFFile.open(path) as file:
        embeddings = file.tensors["token_embd.weight"]
    row_bytes = embeddings.shape[0] * 4
    with path.open("r+b") as file:
        file.seek(embeddings.offset + NAN_TOKEN * row_bytes)
        file.write(np.full(embeddings.shape[0], np.nan, np.float32).tobytes())
    return path


@pytest.fixture
def engine(model: Path) -> Iterator[GgmlEngine]:
    engine = load(model)
    yield engine
    engine.close()


def load(model: Path, *, async_copies: bool = False, disk_dir: Path | None = None) -> GgmlEngine:
    return load_engine(
        GGUFFile.open(model),
        num_pages=NUM_PAGES,
        threads=2,
        max_step_tokens=40,
        max_seqs=3,
        poison=True,
        async_copies=async_copies,
        disk_dir=disk_dir,
    )


BAD_GRANTS = {
    "token too large": {"tokens": (5, 704)},
    "token negative": {"tokens": (-1,)},
    "token beyond 32 bits": {"tokens": (2**40,)},
    "no tokens": {"tokens": ()},
    "page too large": {"pages": (PageId(NUM_PAGES),)},
    "page negative": {"pages": (PageId(-1),)},
    "too few pages": {"start": 31},
    "start negative": {"start": -1},
    "start beyond 32 bits": {"start": 2**40},
    "more pages than the pool": {"pages": (PageId(0),) * (NUM_PAGES + 1)},
}


@pytest.mark.parametrize("change", BAD_GRANTS.values(), ids=BAD_GRANTS)
def test_a_bad_grant_fails_alone(engine: GgmlEngine, change: dict[str, object]) -> None:
    expected = engine.execute(StepPlan(0, grants=(GOOD,))).sampled[SeqId(1)]
    bad = replace(GOOD, seq_id=SeqId(2), **{"pages": (PageId(4),), **change})  # type: ignore[arg-type]
    for grants in ((bad, GOOD), (GOOD, bad)):
        outcome = engine.execute(StepPlan(0, grants=grants))
        assert set(outcome.failed) == {SeqId(2)}
        assert outcome.sampled == {SeqId(1): expected}


BAD_PLANS = {
    "too many tokens": StepPlan(0, grants=(replace(GOOD, tokens=(5,) * 41),)),
    "too many sequences": StepPlan(0, grants=(GOOD,) * 4),
    "copy from nowhere": StepPlan(0, page_copies=(PageCopy(PageId(NUM_PAGES), PageId(0)),)),
    "copy to nowhere": StepPlan(0, page_copies=(PageCopy(PageId(0), PageId(-1)),)),
    "freed nowhere": StepPlan(0, freed=(PageId(NUM_PAGES),)),
}


@pytest.mark.parametrize("plan", BAD_PLANS.values(), ids=BAD_PLANS)
def test_a_bad_plan_is_refused_and_the_engine_goes_on(engine: GgmlEngine, plan: StepPlan) -> None:
    with pytest.raises(EngineError):
        engine.execute(plan)
    assert SeqId(1) in engine.execute(StepPlan(1, grants=(GOOD,))).sampled


def test_logits_that_are_not_numbers_fail_their_sequence_only(engine: GgmlEngine) -> None:
    expected = engine.execute(StepPlan(0, grants=(GOOD,))).sampled[SeqId(1)]
    broken = replace(GOOD, seq_id=SeqId(2), tokens=(5, NAN_TOKEN), pages=(PageId(5),))
    outcome = engine.execute(StepPlan(0, grants=(broken, GOOD)))
    assert "not numbers" in outcome.failed[SeqId(2)]
    assert outcome.sampled == {SeqId(1): expected}


def test_a_draw_that_cannot_be_made_fails_its_sequence_only(engine: GgmlEngine) -> None:
    everything = tuple((token, -np.inf) for token in range(engine.info.num_vocab))
    banned = Draw(SamplingParams(temperature=0.0, logit_bias=everything), 0)
    foreign = Draw(SamplingParams(repeat_penalty=2.0), 0, recent=(99999,))
    outcome = engine.execute(
        StepPlan(
            0,
            grants=(
                replace(GOOD, seq_id=SeqId(2), pages=(PageId(3),), draws=(banned,)),
                GOOD,
                replace(GOOD, seq_id=SeqId(3), pages=(PageId(4),), draws=(foreign,)),
            ),
        )
    )
    assert set(outcome.failed) == {SeqId(2), SeqId(3)}
    assert set(outcome.sampled) == {SeqId(1)}


def out(number: int, *moves: tuple[PageId, HostId]) -> Transfer:
    return Transfer(TransferId(number), SeqId(1), Direction.OUT, moves)


def back(number: int, *moves: tuple[PageId, HostId]) -> Transfer:
    return Transfer(TransferId(number), SeqId(1), Direction.IN, moves)


def test_a_copy_that_cannot_be_made_fails_alone(engine: GgmlEngine) -> None:
    page, host, freed = PageId(2), HostId(0), HostId(1)
    copies = (
        out(1, (page, host), (PageId(NUM_PAGES), HostId(2))),
        back(2, (page, host)),
        back(3, (page, HostId(10**6))),
        out(4, (page, HostId(0, Tier.DISK))),
        out(5, (page, freed)),
    )
    outcome = engine.execute(StepPlan(0, transfers=copies))
    assert set(outcome.failed_transfers) == {1, 2, 3, 4}
    plan = StepPlan(1, host_freed=(freed,), transfers=(back(6, (page, freed)), out(7)))
    outcome = engine.execute(plan)
    assert (outcome.landed, set(outcome.failed_transfers)) == ((7,), {6})
    assert "host page 1 holds nothing" in outcome.failed_transfers[TransferId(6)].message


def test_places_are_forgotten_even_if_the_plan_is_refused(engine: GgmlEngine) -> None:
    page, host = PageId(2), HostId(0)
    engine.execute(StepPlan(0, transfers=(out(1, (page, host)),)))
    with pytest.raises(EngineError):
        engine.execute(StepPlan(1, host_freed=(host,), grants=(GOOD,) * 4))
    outcome = engine.execute(StepPlan(2, transfers=(back(2, (page, host)),)))
    assert set(outcome.failed_transfers) == {2}


@pytest.mark.parametrize("tier", Tier)
def test_copies_beside_grants_land_at_last(model: Path, tmp_path: Path, tier: Tier) -> None:
    engine = load(model, async_copies=True, disk_dir=tmp_path)
    copy = out(1, *((PageId(2), HostId(place, tier)) for place in range(33)))
    outcomes = [engine.execute(StepPlan(0, grants=(GOOD,), transfers=(copy,)))]
    deadline = time.monotonic() + 60
    while not outcomes[-1].landed:
        grants = (GOOD,) if len(outcomes) < 4 else ()
        outcomes.append(engine.execute(StepPlan(len(outcomes), grants=grants)))
        assert time.monotonic() < deadline
    assert outcomes[-1].landed == (1,)
    assert sum(outcome.copy_s for outcome in outcomes) > 0
    engine.close()


def test_copies_are_paced_by_the_shortest_of_the_last_steps(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that compute nothing are none of them, and bear any copies."""
    engine = load(model, async_copies=True)
    paced: list[float | None] = []
    monkeypatch.setattr(engine._copier, "pace", paced.append)
    grants = [(GOOD,), (GOOD,), (), *[(GOOD,)] * 5]
    plans = [StepPlan(step, grants=each) for step, each in enumerate(grants)]
    outcomes = [engine.execute(plan) for plan in plans]
    steps_s = [outcome.compute_s for outcome in outcomes if outcome.compute_s]
    assert len(steps_s) == 7
    expected: list[float | None] = [0.0]
    expected += [min(steps_s[max(0, end - PACE_STEPS) : end]) for end in range(1, 7)]
    expected.insert(2, None)
    assert paced == expected
    engine.close()


@pytest.mark.parametrize("async_copies", [False, True])
def test_an_error_of_ours_in_copying_stops_the_engine(
    model: Path, monkeypatch: pytest.MonkeyPatch, async_copies: bool
) -> None:
    engine = load(model, async_copies=async_copies)
    monkeypatch.setattr(engine._hosts, "write", lambda host, address: 1 // 0)

    def run() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            engine.execute(StepPlan(0, transfers=(out(1, (PageId(2), HostId(0))),)))

    with pytest.raises(EngineFatal, match="the copier stopped: ZeroDivisionError"):
        run()
    engine.close()


def test_the_report_says_how_copies_are_made(engine: GgmlEngine, model: Path) -> None:
    assert engine.info.report.copies == "synchronous"
    other = load(model, async_copies=True)
    assert other.info.report.copies == "asynchronous"
    other.close()


def test_a_folder_for_pages_that_is_none_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--preempt-disk"):
        load_engine(GGUFFile.open(model), num_pages=2, threads=1, disk_dir=tmp_path / "missing")


def test_a_load_that_fails_leaves_nothing_in_the_folder(model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineFatal):
        load_engine(GGUFFile.open(model), num_pages=2**40, threads=1, disk_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_to_do_is_done(engine: GgmlEngine) -> None:
    outcome = engine.execute(StepPlan(0))
    assert outcome.compute_s == 0
    assert not outcome.sampled


def test_every_width_up_to_the_limit(engine: GgmlEngine) -> None:
    """Each has its own padded shape; a row too many would be out of every array."""
    tokens = tuple(range(10, 50))
    drawn = [
        engine.execute(
            StepPlan(
                0, grants=(replace(GOOD, tokens=tokens[:width], pages=(PageId(0), PageId(1))),)
            )
        ).sampled[SeqId(1)]
        for width in range(1, 41)
    ]
    grown = chat(1, tokens[:1], range(4), params=SamplingParams(temperature=0.0))
    for width, expected in enumerate(drawn, 1):
        generate(engine, [grown], width)
        assert (grown.drawn[-1],) == expected
        grown.tokens[width:] = tokens[width : width + 1]


def test_a_pool_larger_than_memory_is_one_clear_error(model: Path) -> None:
    with pytest.raises(EngineFatal, match="no memory"):
        load_engine(GGUFFile.open(model), num_pages=2**40, threads=1)


def test_the_file_is_closed_by_the_engine_that_took_it_over(model: Path) -> None:
    kept, lost = GGUFFile.open(model), GGUFFile.open(model)
    engine = load_engine(kept, num_pages=2, threads=1)
    assert kept.content(0, 4) == b"GGUF"
    engine.close()
    with pytest.raises(EngineFatal):
        load_engine(lost, num_pages=2**40, threads=1)
    for file in (kept, lost):
        with pytest.raises(ValueError, match="closed"):
            file.content(0, 4)


def test_closing_twice_is_safe(model: Path) -> None:
    engine = load_engine(GGUFFile.open(model), num_pages=2, threads=1)
    engine.close()
    engine.close()


def test_the_fingerprint_names_the_model(model: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", weight_type="F32", seed=1)

    def fingerprint(path: Path) -> bytes:
        engine = load_engine(GGUFFile.open(path), num_pages=2, threads=1)
        engine.close()
        return engine.info.fingerprint

    assert fingerprint(model) == fingerprint(model) != fingerprint(other)
