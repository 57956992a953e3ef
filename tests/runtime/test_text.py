"""The detokeniser against a model that sees all bytes at once."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvalet.runtime.messages import TokenInfo
from kvalet.runtime.text import TextStream

ALPHABET = "ab é€😀"  # one to four bytes a character; few of them, so that stops do match


def info(token: int) -> TokenInfo:
    return TokenInfo(token=token, logprob=None, top=())


def naive(data: bytes, stops: list[str]) -> tuple[str, str]:
    """The whole text cut at the stop that ends first, then starts first, and that stop."""
    text = data.decode("utf-8", "replace")
    matches = [
        (start + len(stop), start, stop)
        for stop in stops
        if stop and (start := text.find(stop)) >= 0
    ]
    if not matches:
        return text, ""
    _, start, stop = min(matches)
    return text[:start], stop


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def run(stream: TextStream, pieces: list[bytes]) -> tuple[list[str], list[int]]:
    """Feed until the stop, then finish: the texts let go of and the tokens, by their index."""
    texts: list[str] = []
    tokens: list[int] = []
    for index, data in enumerate(pieces):
        text, infos = stream.feed(data, info(index))
        texts.append(text)
        tokens.extend(each.token for each in infos)
        if stream.stopped_by:
            break
    text, infos = stream.finish()
    return [*texts, text], [*tokens, *(each.token for each in infos)]


texts = st.text(alphabet=ALPHABET, max_size=24)
stop_lists = st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=4), max_size=3)
cut_lists = st.lists(st.integers(0, 80), max_size=30)


@given(text=texts, stops=stop_lists, cuts=cut_lists)
@example(text="aab", stops=["ab"], cuts=[1, 2])  # a failed partial match that overlaps a true one
@example(text="xab", stops=["b", "ab"], cuts=[])  # both end together: the earlier start cuts
def test_any_split_gives_the_text_before_the_first_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    data = text.encode()
    stream = TextStream(stops)
    out, _ = run(stream, split(data, cuts))
    assert ("".join(out), stream.stopped_by) == naive(data, stops)


@given(data=st.binary(max_size=24), stops=stop_lists, cuts=cut_lists)
def test_broken_bytes_decode_as_python_replaces_them(
    data: bytes, stops: list[str], cuts: list[int]
) -> None:
    out, _ = run(TextStream(stops), split(data, cuts))
    assert "".join(out) == naive(data, stops)[0]


@given(text=texts, stops=stop_lists, cuts=cut_lists)
def test_nothing_is_held_longer_than_a_stop_may_claim_it(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stream = TextStream(stops)
    fed, out = b"", ""
    for data in split(text.encode(), cuts):
        fed += data
        out += stream.feed(data).text
        if stream.stopped_by:
            return
        sure = fed.decode(errors="ignore")  # without half a character at the end
        claimed = max(
            (n for stop in stops for n in range(1, len(stop)) if sure.endswith(stop[:n])), default=0
        )
        assert out == sure[: len(sure) - claimed]


@given(text=texts, stops=stop_lists, cuts=cut_lists)
def test_tokens_are_reported_with_their_text_unless_the_stop_ate_all_of_it(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    pieces = split(text.encode(), cuts)
    out, tokens = run(TextStream(stops), pieces)
    num_bytes = len("".join(out).encode())
    starts = [sum(map(len, pieces[:index])) for index in range(len(pieces))]
    expected = [
        index
        for index, (start, data) in enumerate(zip(starts, pieces, strict=True))
        if data and start < num_bytes
    ]
    assert [token for token in tokens if pieces[token]] == expected
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a", b"\xf0\x9f", b"\x98\x80", b"b"], [("a", 1), ("", 0), ("\U0001f600", 2), ("b", 1)]),
        ([b"a", b"x", b"c"], [("a", 1), ("", 0), ("xc", 2)]),  # "x" may begin the stop "xyz"
        ([b"axy", b"b"], [("a", 0), ("xyb", 2)]),  # only part of the first token is certain
        ([b"ax", b"yzq"], [("a", 0), ("", 1)]),  # the stop cuts one token and eats the other
        ([b"", b"a"], [("", 1), ("a", 1)]),  # a control token has no text to wait for
    ],
)
def test_a_token_travels_with_the_text_that_completes_it(
    pieces: list[bytes], expected: list[tuple[str, int]]
) -> None:
    stream = TextStream(["xyz"])
    got = [stream.feed(data, info(0)) for data in pieces]
    assert [(text, len(tokens)) for text, tokens in got] == expected


def test_the_end_lets_go_of_half_a_character_and_half_a_stop() -> None:
    stream = TextStream(["xyz"])
    assert stream.feed(b"axy\xe2\x82", info(7)) == ("a", ())
    assert stream.finish() == ("xy�", (info(7),))


def test_a_long_repetitive_stop_does_not_rescan_what_is_held() -> None:
    """Quadratic matching would need 4e8 comparisons here; the test's timeout catches it."""
    stream = TextStream(["a" * 20_000 + "b"])
    for _ in range(20_000):
        assert stream.feed(b"a").text == ""
    assert len(stream.finish().text) == 20_000
