"""`kvalet bench decode`: tokens per second over HTTP, and what part of a step is not ggml's.

One chat, then four at once, in an ample pool. While all of them run, wall time is compared with the
time the server spent in ggml's graph executor. Of a server that does not count, pieces of text are
taken for tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from kvalet.bench.figures import counts, ratio
from kvalet.bench.gaps import tokens_per_s
from kvalet.bench.harness import Case, Played
from kvalet.bench.loads import at_once, while_all_run
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import Row
from kvalet.bench.target import Where

COUNTS: Final = (1, 4)  # chats at once
WARM_UP: Final = "warm-up"  # the first steps build graphs
WARM_UP_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class Decode:
    tokens: int = 300
    POOL: ClassVar[tuple[str, ...]] = ("--ctx-size", "4096", "--parallel", "4")
    ROUNDS: ClassVar[int] = 3
    needs_own: ClassVar[str] = ""

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        if number == 0:
            yield Case(
                WARM_UP, at_once(pressing_chats(WARM_UP_TOKENS, max(COUNTS), first=where.first))
            )
        for count in COUNTS:
            bodies = pressing_chats(self.tokens, count, first=where.first)
            yield Case(f"{count} at once", while_all_run(bodies))

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        for name, one in played.items():
            if name != WARM_UP:
                yield self._row(name, one)

    def _row(self, name: str, one: Played) -> Row:
        steps = one.counted.get("n_decode_total")
        step_ms = ratio(1e3 * (one.wall_s or 0), steps)
        ggml_ms = ratio(1e3 * one.counted.get("compute_seconds_total", 0), steps)
        in_ggml = ratio(ggml_ms, step_ms)
        counted = ratio(one.counted.get("tokens_predicted_total"), one.wall_s)
        speed = counted if steps else tokens_per_s(one.chats)
        figures = {
            **counts(one.chats),
            "tok/s": speed,
            "step ms": step_ms,
            "of it in ggml ms": ggml_ms,
            "outside %": None if in_ggml is None else 100 * (1 - in_ggml),
        }
        return Row(name, figures, () if speed else ["over too soon to be measured"])
