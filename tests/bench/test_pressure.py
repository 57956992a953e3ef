"""What `kvalet bench pressure` makes of its runs."""

from collections import defaultdict
from dataclasses import replace

import pytest

from kvalet.bench.chats import Chat, ChatState
from kvalet.bench.figures import HEADINGS, Run
from kvalet.bench.pressure import budgets_between, table
from kvalet.bench.prompts import pressing_chats, uneven_chats
from tests.bench.streams import moments

MIB = 1 << 20
SMALL = [Chat("", {"max_tokens": 1}, ChatState.DONE, num_tokens=1) for _ in range(7)]
COUNTED = {"n_preempt_total": 3, "n_preempt_swap_total": 2, "n_preempt_recompute_total": 1}


def run() -> Run:
    paused = moments("piece 0, preempted 1, resumed 2, preempted 3, resumed 5.5")
    ten, ended = {"max_tokens": 10}, ChatState.DONE
    running = moments("piece 0, piece 0.01, piece 0.03, piece 0.06")
    chats = [
        Chat("a", ten, ended, "one", num_tokens=10, moments=paused),
        Chat("b", ten, ended, "two", num_tokens=10, moments=running),
        Chat("c", ten, ended, "thr", num_tokens=9),
        Chat("d", ten),
    ]
    return Run(chats, wall_s=5.0, counted=defaultdict(int, COUNTED), small=SMALL)


def alone(*texts: str) -> dict[str, Chat]:
    return {name: Chat(name, {}, text=text) for name, text in zip("abcd", texts, strict=False)}


def test_why_a_chat_failed_is_told_also_of_one_alone_or_small() -> None:
    solo, small = alone("one", "two", "thr", ""), Chat("", {})
    solo["b"].fail("no room")
    small.fail("too late")
    played = replace(run(), small=[small])
    played.chats[3].fail("it broke")
    figures = played.figures(solo)
    assert (figures.errors, figures.small_requests) == (["it broke", "no room", "too late"], 0)


def test_figures() -> None:
    figures = run().figures(alone("one", "2", "thr", ""))
    assert (figures.chats, figures.completed, figures.identical) == (4, 2, 1)
    assert not figures.is_right
    assert (figures.parks, figures.swapped, figures.recomputed) == (3, 2, 1)
    assert figures.tokens_per_s == 29 / 5
    assert figures.longest_parked_s == 2.5
    assert figures.gap_p50_ms == pytest.approx(20.0)
    assert len(figures.cells()) == len(HEADINGS)


def test_what_a_server_does_not_count_is_not_zero() -> None:
    figures = replace(run(), counted={}).figures(alone("one", "two", "thr", ""))
    assert (figures.parks, figures.swapped, figures.recomputed_tokens) == (None, None, None)
    assert figures.cells()[2:6] == ("-",) * 4
    assert figures.comparable()["completed"] == 2


def test_to_fail_at_once_is_not_fast() -> None:
    failed = [Chat("a", {"max_tokens": 10}, ChatState.FAILED)]
    figures = Run(failed, wall_s=0.01, counted={}, small=[]).figures(alone(""))
    assert figures.gap_p50_ms is None
    assert figures.comparable() == {"completed": 0, "identical to alone": 0}
    assert figures.cells()[-2] == "- / -"


def test_a_table_is_markdown() -> None:
    figures = run().figures(alone("", "", "", ""))
    lines = list(table([({"policy": "smallest"}, figures), ({"policy": "largest"}, figures)]))
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {len(HEADINGS) + 2}


def test_budgets_lie_between_the_parks_that_were_seen() -> None:
    def line(size: int, mode: str) -> str:
        return f"INFO park: slot=0 request=x cells=1 bytes={size} mode={mode} ms=1.0 why='pressure'"

    sizes = [(3 * MIB, "swap"), (15 * MIB, "swap"), (99 * MIB, "recompute")]
    output = "\n".join(line(size, mode) for size, mode in sizes)
    assert budgets_between(output) == ["7", "11"]


def test_chats_differ_from_their_first_words_on() -> None:
    chats = [*pressing_chats(10, count=8), *uneven_chats(100)]
    openings = {body["messages"][0]["content"][:20] for _, body in chats}
    assert len({name for name, _ in chats}) == len(openings) == 8
    later = {body["messages"][0]["content"][:20] for _, body in uneven_chats(100, first=8)}
    assert not later & openings
    assert [body["max_tokens"] for _, body in uneven_chats(100)] == [
        *(100, 15, 70, 10, 45, 90, 30, 60)
    ]
