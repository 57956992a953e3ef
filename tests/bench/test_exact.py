"""What `kvalet bench exact` makes of texts."""

from kvalet.bench.exact import AGAIN, ALONE, BESIDE, Exact, requests
from kvalet.bench.figures import first_difference, num_same
from kvalet.bench.report import Row
from tests.bench.streams import PARKED, chat, failed, played

BACK, COMPUTED = "parked every 16 tokens, copied back", "parked every 16 tokens, computed again"
TEXTS = [chat("a", text="one two"), chat("b", text="three")]
STILL = dict.fromkeys(PARKED, 0.0)


def row(case: str, *chats: object, **counted: float) -> Row:
    (found,) = Exact().rows({ALONE: played(TEXTS), case: played(list(chats), counted)})  # type: ignore[arg-type]
    return found


def test_identical() -> None:
    same = row(BESIDE, *TEXTS)
    assert (same.figures["as alone"], same.figures["first difference at character"]) == (2, None)
    assert not same.faults


def test_the_first_difference_of_all_is_told() -> None:
    other = row(BESIDE, chat("a", text="one tw"), chat("b", text="thrEE"))
    assert (other.figures["as alone"], other.figures["first difference at character"]) == (0, 3)
    assert other.faults == ["0 of 2 texts as alone"]
    assert first_difference("abc", "abd") == 2
    assert first_difference("ab", "abd") == 2


def test_what_did_not_happen_proves_nothing() -> None:
    for case in (BACK, COMPUTED, AGAIN):
        assert row(case, *TEXTS, **STILL).faults == ["did not happen"]
    assert not row(BACK, *TEXTS, **PARKED).faults
    assert not row(COMPUTED, *TEXTS, **PARKED).faults
    assert not row("in batches of 32", *TEXTS, **STILL).faults


def test_a_text_that_broke_off_is_not_identical() -> None:
    broken = failed("b")
    broken.text = "three"
    assert row(BESIDE, TEXTS[0], broken).figures["as alone"] == 1
    assert num_same(TEXTS, [TEXTS[0], broken]) == 1  # nor is one that broke off alone
    assert num_same([chat("a", text="")], [chat("a", text="")]) == 0
    assert num_same([chat("a", tokens=1, of=2)], [chat("a")]) == 0


def test_requests_are_greedy_and_sampled_with_a_seed() -> None:
    asked = dict(requests(50))
    assert len(asked) == 8
    assert {body["temperature"] for body in asked.values()} == {0, 0.9}
    assert all("seed" in body for body in asked.values() if body["temperature"])
