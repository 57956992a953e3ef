"""`kvalet bench latency`: how long clients wait when requests come as they please.

For each rate, requests of mixed lengths arrive at random (Poisson; lengths and pace follow from a
seed) whether or not earlier ones are answered: time to first token, gaps between tokens with all
pauses in them, and goodput: how many a second got their first token and then one after the other
within the limits. Times are of complete requests.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from kvalet.bench.chats import Chat
from kvalet.bench.figures import counts, gaps_s, percentiles, rate, ratio
from kvalet.bench.harness import Case, Played
from kvalet.bench.loads import Arrival, arriving
from kvalet.bench.prompts import mixed_request
from kvalet.bench.report import Row
from kvalet.bench.target import Where

WORDS: Final = (8, 320)  # of a prompt; drawn evenly on a logarithmic scale, as the tokens
TOKENS: Final = (8, 128)  # of an answer


@dataclass(frozen=True, slots=True)
class Latency:
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)  # requests a second
    requests: int = 40  # at each rate
    max_first: float = 1.0  # seconds to the first token of a good request
    max_gap: float = 0.1  # seconds between its tokens, on average
    seed: int = 1
    POOL: ClassVar[tuple[str, ...]] = ("--ctx-size", "2048", "--parallel", "4")
    ROUNDS: ClassVar[int] = 1
    needs_own: ClassVar[str] = ""

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        for index, a_second in enumerate(self.rates, number * len(self.rates)):
            first = where.first + index * self.requests
            coming = arrivals(self.seed, self.requests, a_second, first)
            yield Case(f"{a_second:g} a second", arriving(coming))

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        for name, one in played.items():
            complete = [chat for chat in one.chats if chat.is_complete]
            figures = {
                **counts(one.chats),
                **percentiles("first token", (chat.first_piece_s for chat in complete), 50, 95),
                **percentiles("gap", gaps_s(complete, lambda chat: chat.waits_s), 50, 99),
                "goodput/s": ratio(sum(map(self.is_good, complete)), one.wall_s),
                "tok/s": rate(complete, one.wall_s),
                "parks": one.counted.get("n_preempt_total"),
            }
            yield Row(name, figures)

    def is_good(self, chat: Chat) -> bool:
        first_s, mean_gap_s = chat.first_piece_s, statistics.fmean(chat.waits_s or [0.0])
        return first_s is not None and first_s <= self.max_first and mean_gap_s <= self.max_gap


def arrivals(seed: int, count: int, a_second: float, first: int = 0) -> Iterator[Arrival]:
    """With the same lengths at every pace and for every `first`, but other openings. `first`: how
    many there were before."""
    random = Random(seed)
    at_s = 0.0
    for number in range(first, first + count):
        body = mixed_request(number, _between(random, *WORDS), _between(random, *TOKENS))
        yield Arrival(at_s, body)
        at_s += random.expovariate(1.0) / a_second


def _between(random: Random, least: int, most: int) -> int:
    return round(math.exp(random.uniform(math.log(least), math.log(most))))
