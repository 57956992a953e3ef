"""Cuts text at the tokens that are matched as they stand, before any splitting rule sees it.

Leftmost first, then longest. Control tokens are looked for only where the caller trusts the text
(a rendered chat template); user-defined ones always, since they stand for text.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping


class SpecialTokens:
    """`tokens` are ids by text; white space after one of `swallowing` belongs to it."""

    def __init__(self, tokens: Mapping[str, int], swallowing: frozenset[int]) -> None:
        self._tokens = tokens
        self._swallowing = swallowing
        self._beginnings = re.compile("|".join(map(re.escape, {text[:2] for text in tokens})))
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in tokens:
            lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(all_, reverse=True) for first, all_ in lengths.items()}

    def split(self, text: str) -> Iterator[str | int]:
        """The text's parts in order: ids of special tokens, and what lies between (never empty)."""
        done = position = 0
        while self._tokens and (beginning := self._beginnings.search(text, position)):
            start = beginning.start()
            found = self._longest_at(text, start)
            if found is None:
                position = start + 1
                continue
            if start > done:
                yield text[done:start]
            token, position = found
            yield token
            done = position
        if done < len(text):
            yield text[done:]

    def _longest_at(self, text: str, start: int) -> tuple[int, int] | None:
        """The token that begins at `start` and where what follows it begins."""
        for length in self._lengths[text[start]]:
            token = self._tokens.get(text[start : start + length])
            if token is not None:
                return token, self._end(text, start + length, token)
        return None

    def _end(self, text: str, end: int, token: int) -> int:
        if token in self._swallowing:
            while end < len(text) and text[end].isspace():
                end += 1
        return end
