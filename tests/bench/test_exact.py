"""What `kvalet bench exact` makes of texts."""

import pytest

from kvalet.bench.chats import Chat, ChatState
from kvalet.bench.exact import HEADINGS, Matrix, requests, row, texts_of
from kvalet.bench.figures import first_difference
from kvalet.errors import EngineError

EXPECTED = {"a": "one two", "b": "three"}


def chats(*texts: str) -> list[Chat]:
    one, done = {"max_tokens": 1}, ChatState.DONE
    names = zip("ab", texts, strict=True)
    return [Chat(name, one, done, text=text, num_tokens=1) for name, text in names]


def test_identical() -> None:
    same = row("again", EXPECTED, chats("one two", "three"), "4 found")
    assert same.is_right
    assert same.cells() == ("again", "2/2", "-", "4 found")
    assert len(same.cells()) == len(HEADINGS)


def test_the_first_difference_of_all_is_told() -> None:
    other = row("beside", EXPECTED, chats("one tw", "thrEE"))
    assert (other.identical, other.first_difference, other.is_right) == (0, 3, False)
    assert first_difference("abc", "abd") == 2
    assert first_difference("ab", "abd") == 2


def test_what_did_not_happen_proves_nothing() -> None:
    still = row("parked", EXPECTED, chats("one two", "three"), "0 parks", has_happened=False)
    assert still.identical == still.asked
    assert not Matrix([still]).is_right
    assert Matrix([still]).comparable() == {"parked: share identical": 1.0}


def test_a_text_that_broke_off_is_not_identical() -> None:
    whole, broken = chats("one two", "three")
    broken.fail("the stream ended early")
    other = row("again", EXPECTED, [whole, broken])
    assert (other.identical, other.is_right, other.errors) == (1, False, ["the stream ended early"])
    with pytest.raises(EngineError, match="b: no text to compare with: the stream ended early"):
        texts_of([whole, broken])


def test_no_text_is_nothing_to_compare_with() -> None:
    with pytest.raises(EngineError, match="b: no text to compare with: none came"):
        texts_of(chats("one", ""))


def test_requests_are_greedy_and_sampled_with_a_seed() -> None:
    asked = dict(requests(50))
    assert len(asked) == 8
    assert {body["temperature"] for body in asked.values()} == {0, 0.9}
    assert all("seed" in body for body in asked.values() if body["temperature"])
    texts = {body["messages"][0]["content"] for body in asked.values()}
    later = {body["messages"][0]["content"] for _, body in requests(50, first=4)}
    assert len(texts) == len(later) == 4
    assert not texts & later
