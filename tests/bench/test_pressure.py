"""What `kvalet bench pressure` asks, and what it makes of the answers."""

from dataclasses import replace

import pytest

from kvalet.bench.chats import Chat
from kvalet.bench.figures import MIB
from kvalet.bench.harness import Played
from kvalet.bench.loads import SMALL
from kvalet.bench.pressure import ALONE, TOGETHER, Pressure, budgets_between
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import Row
from kvalet.bench.target import Where
from kvalet.core.policy import VICTIM_POLICIES
from tests.bench.streams import PARKED, chat, failed, moments, played

PAUSED = "sent 0, piece 1, preempted 2, resumed 3, preempted 4, resumed 6.5"
RUNNING = "sent 0, piece 1, piece 1.01, piece 1.03, piece 1.06"


def chats() -> list[Chat]:
    return [
        chat("a", moments(PAUSED), tokens=10, of=10, text="one"),
        chat("b", moments(RUNNING), tokens=10, of=10, text="two"),
        chat("c", tokens=9, of=10, text="three"),
        failed("d"),
    ]


def row(one: Played, *alone: str, pressure: Pressure | None = None) -> Row:
    texts = zip("abcd", alone, strict=False)
    solo = played([chat(name, text=text) for name, text in texts])
    (found,) = (pressure or Pressure()).rows({TOGETHER: one, ALONE: solo})
    return found


def test_figures() -> None:
    found = row(played(chats(), PARKED), "one", "2", "three", "four")
    told = found.figures
    assert [told[name] for name in ("chats", "complete", "stopped early", "failed")] == [4, 2, 1, 1]
    assert told["as alone"] == 1
    assert [told[name] for name in ("parks", "swapped", "recomputed")] == [3, 2, 1]
    assert told["tokens recomputed"] == 40
    assert told["tok/s"] == 2.9
    assert told["longest parked s"] == 2.5
    assert told["gap p50 ms"] == pytest.approx(20.0)
    assert found.faults == ["1 of 4 texts as alone"]


def test_what_a_server_does_not_count_is_not_zero() -> None:
    found = row(played(chats()[:2]), "one", "two")
    assert [found.figures[name] for name in ("parks", "tokens recomputed")] == [None, None]
    assert not found.faults


def test_to_fail_at_once_is_not_fast() -> None:
    told = row(played([failed("a")]), "one").figures
    assert [told[name] for name in ("wall s", "tok/s", "gap p50 ms")] == [None, None, None]


def test_what_did_not_press_proves_nothing() -> None:
    still = {**PARKED, "n_preempt_total": 0.0}
    found = row(played(chats()[:2], still), "one", "two")
    assert found.faults == ["nothing was parked, so nothing pressed"]


def test_small_requests_are_counted_apart() -> None:
    one = played([*chats()[:2], chat(SMALL), chat(SMALL), failed(SMALL)], PARKED)
    told = row(one, "one", "two", pressure=Pressure(small=True)).figures
    assert (told["chats"], told["small answered"]) == (2, 2)


def park(num_bytes: int, mode: str) -> str:
    return f"INFO park: slot=0 request=x cells=1 bytes={num_bytes} mode={mode} ms=1 why='x'\n"


LOG = park(3 * MIB, "swap") + park(15 * MIB, "swap") + park(99 * MIB, "recompute")
LOG += park(MIB, "swap").replace("park:", "resume:")


def test_budgets_lie_between_the_parks_that_were_seen() -> None:
    assert budgets_between(LOG) == ["7", "11"]


def names(pressure: Pressure) -> list[tuple[str, tuple[str, ...]]]:
    """Of the cases, with the flags of their servers."""
    done: dict[str, Played] = {}
    found = []
    for case in pressure.cases(Where(), 0, done):
        found.append((case.name, case.flags))
        done[case.name] = replace(played([]), log=LOG)
    return found


def test_a_matrix_is_every_budget_under_every_policy() -> None:
    *found, last = names(Pressure(matrix=True))
    assert len(found) == len(dict(found)) == 5 * len(VICTIM_POLICIES)
    policy = next(iter(VICTIM_POLICIES))
    assert found[1] == (
        f"--preempt-policy {policy} --preempt-ram default",
        ("--preempt-policy", policy),
    )
    assert last == (ALONE, ())


def test_chats_differ_from_their_first_words_on() -> None:
    found = pressing_chats(10, count=8)
    openings = {body["messages"][0]["content"][:20] for _, body in found}
    assert len({name for name, _ in found}) == len(openings) == 8
    later = {body["messages"][0]["content"][:20] for _, body in pressing_chats(10, 8, first=8)}
    assert not later & openings
