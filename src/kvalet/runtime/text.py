"""From a sequence's tokens to text that is certain: whole characters, no part of a stop string.

Owns the undecoded bytes, the characters a stop string may still claim, and the tokens whose text
waits with them. Knows nothing of why a sequence ends. What it lets go, joined, is the generated
text cut before the first stop string, however the text was split into tokens. Work per token is
proportional to its own text.
"""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvalet.runtime.messages import TokenInfo


class Piece(NamedTuple):
    """Text that became certain, and the reported tokens whose text is now all out."""

    text: str
    tokens: tuple[TokenInfo, ...]


class StopString:
    """Knuth-Morris-Pratt: how many characters of `stop` the text so far ends with."""

    __slots__ = ("_fallback", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = _fallbacks(stop)

    def advance(self, char: str) -> int:
        matched = self.matched
        while matched and self.stop[matched] != char:
            matched = self._fallback[matched - 1]
        self.matched = matched + (self.stop[matched] == char)
        return self.matched


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of `stop`: the longest shorter prefix that it also ends with."""
    fallback = [0] * len(stop)
    matched = 0
    for i in range(1, len(stop)):
        while matched and stop[matched] != stop[i]:
            matched = fallback[matched - 1]
        matched += stop[matched] == stop[i]
        fallback[i] = matched
    return fallback


class TextStream:
    """Incremental detokeniser of one sequence. Feed it tokens until `stopped_by`, then `finish`.

    Broken UTF-8 becomes U+FFFD where Python's `errors="replace"` puts it. Of several stop strings
    the one that ends first cuts the text; of those that end together, the one that starts first.
    Positions below count characters of the decoded text from its start.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped_by = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = [StopString(stop) for stop in stops if stop]
        self._held = ""  # decoded, but a stop string may still claim it
        self._num_decoded = 0
        self._waiting: deque[tuple[int, int, TokenInfo]] = deque()  # start, end of its text

    def feed(self, data: bytes, info: TokenInfo | None = None) -> Piece:
        """Take the bytes of the next token, with what is to be reported of it, if anything."""
        start = self._num_decoded
        text = self._decoder.decode(data)
        self._num_decoded += len(text)
        if info is not None:
            # A token that ends inside a character is out when that character is.
            end = self._num_decoded + bool(self._decoder.getstate()[0])
            self._waiting.append((start, end, info))
        return self._release(text)

    def finish(self) -> Piece:
        """Let go of everything held; half a character at the end comes out as U+FFFD."""
        tail = "" if self.stopped_by else self._decoder.decode(b"", final=True)
        self._num_decoded += len(tail)
        text, tokens = self._release(tail)
        rest, self._held = self._held, ""
        return Piece(text + rest, tokens + self._take_tokens(self._num_decoded))

    def _release(self, text: str) -> Piece:
        held = self._held + text
        certain = self._scan(text, len(held)) if self._stops else len(held)
        tokens = self._take_tokens(self._num_decoded - len(held) + certain)
        self._held = held[certain:]
        if self.stopped_by:
            self._held = ""
            self._waiting.clear()
        return Piece(held[:certain], tokens)

    def _scan(self, text: str, num_held: int) -> int:
        """How many of the `num_held` characters, the last of them the new `text`, are certain."""
        if not text:
            return 0
        longest = 0
        for position, char in enumerate(text, start=num_held - len(text) + 1):
            longest = 0
            for stop in self._stops:
                matched = stop.advance(char)
                if matched > longest:
                    longest = matched
                if matched == len(stop.stop) > len(self.stopped_by):
                    self.stopped_by = stop.stop
            if self.stopped_by:
                return position - len(self.stopped_by)
        return num_held - longest

    def _take_tokens(self, certain: int) -> tuple[TokenInfo, ...]:
        """Tokens all of whose text lies before `certain`; at a stop, also the one it cuts."""
        taken: list[TokenInfo] = []
        while self._waiting:
            start, end, info = self._waiting[0]
            if end > certain and not (self.stopped_by and start < certain):
                break
            taken.append(info)
            self._waiting.popleft()
        return tuple(taken)
