"""Parks every 8 tokens: the same bits, everything moved, and a broken copy or replay shows."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvalet.core.plan import Direction, StepPlan, Transfer, pages_for
from kvalet.core.request import SamplingParams
from tests.preemption.stage import GREEDY, WARM, Stage, alone, chat
from tests.runtime.clients import Client

pytestmark = pytest.mark.native

EVERY = 8
NUM_PROMPT, NUM_TOKENS = 100, 64
CELLS_WHEN_PARKED = [NUM_PROMPT + n - 1 for n in range(EVERY, NUM_TOKENS, EVERY)]


def stage(model: Path, budget: int | None = None) -> Stage:
    return Stage(model, options={"preempt_every": EVERY, "host_budget_pages": budget})


def a_chat(sampling: SamplingParams = GREEDY) -> Client:
    return chat(1, NUM_PROMPT, NUM_TOKENS, sampling=sampling)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_swapped_every_8_tokens(tiny: Path, sampling: SamplingParams) -> None:
    done = stage(tiny).finish(a_chat(sampling))
    done.check_as_alone()
    assert done.count("n_preempt") == done.count("n_preempt_swap") == len(CELLS_WHEN_PARKED) >= 6
    moved = sum(map(pages_for, CELLS_WHEN_PARKED)) * done.engine.info.page_bytes
    assert done.count("preempt_bytes_out") == done.count("preempt_bytes_in") == moved
    assert done.count("n_recompute_tokens") == 0


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_recomputed_every_8_tokens(tiny: Path, sampling: SamplingParams) -> None:
    """The keys and values too: `check_as_alone` compares them."""
    done = stage(tiny, budget=0).finish(a_chat(sampling))
    done.check_as_alone()
    assert done.count("n_preempt_recompute") == len(CELLS_WHEN_PARKED) >= 6
    assert done.count("n_recompute_tokens") == sum(CELLS_WHEN_PARKED)
    assert done.count("preempt_bytes_out") == done.count("preempt_bytes_in") == 0


@pytest.mark.parametrize("budget", [None, 0, 5], ids=["swap", "recompute", "both"])
def test_four_at_once_each_parked_every_8_tokens(tiny: Path, budget: int | None) -> None:
    chats = [chat(salt, 20 + 30 * salt, NUM_TOKENS) for salt in (1, 2, 3)]
    done = stage(tiny, budget).finish(*chats, chat(4, 60, NUM_TOKENS, sampling=WARM))
    done.check_as_alone()
    done.check_pressed(swaps=budget != 0, replays=budget is not None, parks=4 * 7)


def test_one_byte_flipped_in_the_store_changes_the_text(tiny: Path) -> None:
    on, client = stage(tiny), a_chat()
    flipped: list[object] = []

    def flip_once(plan: StepPlan) -> StepPlan:
        for transfer in plan.transfers:
            if flipped or not isinstance(transfer, Transfer):
                continue
            if transfer.direction is Direction.IN:
                page, host = transfer.moves[0]
                on.engine.flip(host, offset=1)
                flipped.append(page)
        return plan

    on.engine.tamper = flip_once
    on.finish(client)
    told, expected = on.told(client), alone(tiny, client.wanted, on.n_ctx, context_shift=False)
    assert len(flipped) == 1
    assert told.drawn[:EVERY] == expected.drawn[:EVERY]
    assert told.text != expected.text


def test_one_token_skipped_in_a_replay_is_found(tiny: Path) -> None:
    """Its cell holds NaN, as all that are not in use do here: what is drawn is no number."""
    on, client = stage(tiny, budget=0), a_chat()
    skipped: list[int] = []

    def skip_once(plan: StepPlan) -> StepPlan:
        if plan.step < 2 or skipped or not any(g.start == 0 for g in plan.grants):
            return plan
        (grant,) = plan.grants
        skipped.append(grant.tokens[0])
        return replace(plan, grants=(replace(grant, start=1, tokens=grant.tokens[1:]),))

    on.engine.tamper = skip_once
    on.finish(client)
    assert len(skipped) == 1
    assert "not numbers" in str(client.error)
    assert len(on.told(client).drawn) == EVERY


def test_one_token_replayed_wrong_changes_the_text(tiny: Path) -> None:
    """In every replay: the next one would mend it."""
    on, client = stage(tiny, budget=0), a_chat()

    def change(plan: StepPlan) -> StepPlan:
        if plan.step < 2 or not any(g.start == 0 for g in plan.grants):
            return plan
        (grant,) = plan.grants
        tokens = (*grant.tokens[:50], grant.tokens[50] + 1, *grant.tokens[51:])
        return replace(plan, grants=(replace(grant, tokens=tokens),))

    on.engine.tamper = change
    on.finish(client)
    told, expected = on.told(client), alone(tiny, client.wanted, on.n_ctx, context_shift=False)
    assert told.drawn[:EVERY] == expected.drawn[:EVERY]
    assert told.drawn[EVERY] != expected.drawn[EVERY]
    assert told.text != expected.text
