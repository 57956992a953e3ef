"""Context shift: endless chats take turns and finish, each as it is alone (behaviour C1, P7, P10).

With KVALET_LONG=1 they are as long as the rows say, else ten times shorter (behaviour T16, T17).
"""

import logging
import os
from pathlib import Path

import pytest

from kvalet.core.plan import pages_for
from kvalet.runtime.messages import Finished, Preempted
from tests.builders import SchedulerOptions
from tests.preemption.stage import WARM, Stage, chat

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

SCALE = 1 if os.environ.get("KVALET_LONG") else 10
ROTATE_S = 20.0  # steps, on a stage


def options(budget: int | None = None, **more: int) -> SchedulerOptions:
    chosen: SchedulerOptions = {
        "context_shift": True,
        "rotate_s": ROTATE_S,
        "host_budget_pages": budget,
    }
    return {**chosen, **more}  # type: ignore[typeddict-item]  # names are the test's


def num_shifts(on: Stage) -> int:
    return sum(len(plan.page_shifts) for plan in on.engine.plans)


def test_three_endless_chats_in_384_cells_take_turns_and_finish(tiny: Path) -> None:
    length = 6000 // SCALE
    chats = [chat(salt, 50, length, num_keep=32) for salt in (1, 2)]
    on = Stage(tiny, 12, options=options())
    on.finish(*chats, chat(3, 90, length, sampling=WARM))
    on.check_as_alone()
    assert [client.finished.num_tokens for client in on.clients] == [length] * 3
    assert all(client.count(Preempted) for client in on.clients)
    assert num_shifts(on) >= 3 * length // 384
    on.check_pressed(swaps=True, replays=False, parks=3)  # what has shifted is never replayed
    assert on.engine.peak_pages == 12


def test_two_endless_chats_in_256_cells_take_turns_and_finish(tiny: Path) -> None:
    length = 12_000 // SCALE
    on = Stage(tiny, 8, options=options())
    on.finish(*(chat(salt, 50, length) for salt in (1, 2)))
    on.check_as_alone()
    assert [client.finished.num_tokens for client in on.clients] == [length] * 2
    assert all(client.count(Preempted) >= 1 for client in on.clients)
    assert num_shifts(on) >= 2 * length // 256
    on.check_pressed(swaps=True, replays=False, parks=2)
    assert on.engine.peak_pages == 8


def test_with_a_budget_for_one_state_rotation_is_refused_once_and_all_finish(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvalet.preempt")
    on = Stage(tiny, 8, options=options(budget=5))
    on.finish(*(chat(salt, 50, 900) for salt in (1, 2)))
    on.check_as_alone()
    texts = [record.getMessage() for record in caplog.records]
    refusals = [text for text in texts if text.startswith("rotation refused")]
    parks = [text for text in texts if text.startswith("park:")]
    assert (len(refusals), len(parks)) == (1, 1)  # a state is 4 pages once it has shifted
    on.check_pressed(swaps=True, replays=False)
    assert all(isinstance(client.events[-1], Finished) for client in on.clients)


@pytest.mark.parametrize("budget", [None, 0], ids=["swap", "over the budget"])
def test_shifted_chats_parked_every_50_tokens(tiny: Path, budget: int | None) -> None:
    """What cannot be replayed is copied even over the budget; before it shifts, it is replayed."""
    on = Stage(tiny, 8, options=options(budget, preempt_every=50))
    on.finish(chat(1, 100, 600, num_keep=40))
    on.check_as_alone()
    assert on.count("n_preempt") == on.count("n_resume") == 11
    assert on.count("n_preempt_recompute") == (3 if budget == 0 else 0)
    on.check_moved(swaps=True, replays=budget == 0)
    assert num_shifts(on) >= 2


def test_one_that_is_dropped_when_it_is_about_to_shift_is_replayed_and_then_shifts(
    tiny: Path,
) -> None:
    """156 generated tokens after 100 are n_ctx: the last of them is computed after the shift."""
    on = Stage(tiny, 8, options=options(budget=0, preempt_every=156))
    on.finish(chat(1, 100, 300))
    on.check_as_alone()
    assert (on.count("n_preempt_recompute"), on.count("n_recompute_tokens")) == (1, 255)
    assert num_shifts(on) == 2


def test_a_replay_up_to_a_shift_may_take_everything_by_name(tiny: Path) -> None:
    """A chat is parked with n_ctx tokens, 257, and its pages evicted. When it comes back, a prompt
    of its first 256 tokens is just being computed; its last token waits for the shift."""
    client = chat(1, 100, 300, id_slot=1)
    on = Stage(tiny, 24, num_slots=5, options={**options(budget=0), "n_ctx": 257})

    def resume_beside_its_own_text() -> None:
        drawn = [sampled.token for sampled in on.told(client).drawn]
        prompt = (*client.wanted.prompt, *drawn[:156])
        on.submit(chat(2, prompt=prompt, max_new_tokens=1, id_slot=0))
        on.service.resume(1)

    on.at = {
        157: lambda: on.service.park(1, timeout_s=1e6),
        160: lambda: on.submit(*(chat(salt, 250, 5) for salt in (3, 4, 5))),
        200: resume_beside_its_own_text,
    }
    on.finish(client)
    on.check_as_alone()
    assert on.count("n_preempt_recompute") == 1
    assert on.count("n_recompute_tokens") == 0


def test_a_shift_beside_a_sharer_copies_first(tiny: Path) -> None:
    """Two choices with one prompt of seven pages: who shifts first leaves the other's pages be."""
    prompt = tuple((i * 7) % 250 for i in range(225))
    on = Stage(tiny, 24, options={**options(), "n_ctx": 256})
    on.finish(*(chat(i, prompt=(*prompt, i), max_new_tokens=200) for i in (1, 2)))
    on.check_as_alone()
    copied = sum(len(plan.page_copies) for plan in on.engine.plans)
    assert 1 <= copied <= pages_for(225)
