"""The log's lines of parks and resumes, on the bench's clock of a second a step (behaviour M3)."""

import logging
import re

import pytest
from tests.runtime.clients import Bench, Client, generation

from kvalet.core.plan import StepPlan

PAGE_BYTES = 32 * 4  # the fake engine's


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvalet.preempt")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, str]]]:
    """Each line's word and its figures."""
    return [
        (text.split(":")[0], dict(re.findall(r"(\w+)=('.*'|\S+)", text)))
        for record in caplog.records
        if record.name == "kvalet.preempt"
        for text in [record.getMessage()]
    ]


def test_a_swap_s_lines_say_what_moved_how_long_and_why(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(transfer_steps=2, options={"preempt_every": 40})
    bench.run(Client(generation(1, num_prompt=40, max_new_tokens=50)))
    figures = {
        "slot": "0",
        "request": "request-1",
        "cells": "79",  # the last token drawn is not computed yet
        "bytes": str(3 * PAGE_BYTES),
        "mode": "swap",
        "why": "'forced'",
    }
    # Out: the step that starts it and two more. In: one with nothing to do, then the same.
    assert lines(caplog) == [
        ("park", {**figures, "ms": "3000.0"}),
        ("resume", {**figures, "ms": "6000.0"}),
    ]


def test_a_recompute_moves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(options={"preempt_every": 40, "host_budget_pages": 0})
    bench.run(Client(generation(1)))
    (park, out), (resume, back) = lines(caplog)
    assert (park, resume) == ("park", "resume")
    assert (out["mode"], out["bytes"], out["ms"]) == ("recompute", "0", "0.0")
    assert (back["mode"], back["bytes"]) == ("recompute", "0")
    assert float(back["ms"]) > 0


@pytest.mark.parametrize("budget", [None, 0, 6])
def test_a_line_for_each_and_no_others(
    caplog: pytest.LogCaptureFixture, budget: int | None
) -> None:
    bench = Bench(transfer_steps=1, options={"preempt_every": 9, "host_budget_pages": budget})
    bench.run(*(Client(generation(salt, max_new_tokens=100)) for salt in (1, 2, 3)))
    words = [word for word, _ in lines(caplog)]
    counters = bench.scheduler.counters
    assert words.count("park") == counters.n_preempt >= 30
    assert words.count("resume") == counters.n_resume
    assert len(words) == counters.n_preempt + counters.n_resume


def test_a_chat_that_goes_while_it_is_copied_out_has_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(transfer_steps=3, options={"preempt_every": 10})

    def go_at_the_first_copy(plan: StepPlan) -> None:
        if plan.transfers:
            bench.cancel(1)

    bench.before_step = go_at_the_first_copy
    bench.run(Client(generation(1)), Client(generation(2, max_new_tokens=5)))
    assert [word for word, _ in lines(caplog)] == ["park"]


def test_a_state_over_the_budget_says_so(caplog: pytest.LogCaptureFixture) -> None:
    options = {"context_shift": True, "preempt_every": 250, "host_budget_pages": 0}
    bench = Bench(num_pages=8, options=options)  # type: ignore[arg-type]  # as it is typed there
    bench.run(Client(generation(1, max_new_tokens=300)))
    (_, out), (_, back) = lines(caplog)
    assert out["why"] == back["why"] == "'forced, over the budget: it cannot be replayed'"
    assert out["bytes"] == back["bytes"] != "0"


def test_a_refused_rotation_is_a_warning_a_park(caplog: pytest.LogCaptureFixture) -> None:
    options = {"context_shift": True, "rotate_s": 5.0, "host_budget_pages": 5}
    bench = Bench(num_pages=8, options=options)  # type: ignore[arg-type]  # as it is typed there
    bench.run(*(Client(generation(salt, max_new_tokens=600)) for salt in (1, 2)))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert 1 <= len(warnings) <= 1 + bench.scheduler.counters.n_preempt
    assert all("rotation refused: slot=" in text for text in warnings)
