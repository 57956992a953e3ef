"""`kvalet bench exact`: is a text the same however it is asked for?

Chats of four subjects, greedy and sampled with a seed, one after another; then the same again in
other ways, each text compared with the first. Of any OpenAI-compatible server: asked again, and
beside three others. Of one that is started: also parked and copied back, parked and computed again,
with other batches and threads, and after a restart. A way that did not happen (no park, nothing
copied) is wrong.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import httpx

from kvalet.bench.chats import Chat
from kvalet.bench.figures import MIB, counts, first_difference, num_same, told
from kvalet.bench.harness import Case, Played
from kvalet.bench.loads import Bodies, in_groups, one_by_one, without_cache
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.report import Row
from kvalet.bench.target import Where
from kvalet.errors import EngineError

NUM_BESIDE: Final = 4
EVERY: Final = 16  # tokens between forced parks
SAMPLING: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "seed": 11},
}
ALONE, AGAIN, BESIDE = "alone", "again", "beside three others"
PARKED: Final = "n_preempt_total"
BACK: Final = "preempt_bytes_in_total"
RECOMPUTED: Final = "n_recompute_tokens_total"


@dataclass(frozen=True, slots=True)
class Exact:
    tokens: int = 200
    every: int | None = None
    POOL: ClassVar[tuple[str, ...]] = ("--ctx-size", "4096", "--parallel", "4")
    ROUNDS: ClassVar[int] = 1

    @property
    def needs_own(self) -> str:
        return "--every: with --url or --vs nothing is parked on purpose" if self.every else ""

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        chats = requests(self.tokens, where.first + number * NUM_BESIDE)
        alone = one_by_one(without_cache(chats))
        yield Case(ALONE, alone)
        yield Case(BESIDE, in_groups(chats, NUM_BESIDE))
        yield Case(AGAIN, one_by_one(chats))
        if where.is_own:
            threads, every = _other_threads(played[ALONE].url), self.every or EVERY
            parks = {"LLAMA_SERVER_PREEMPT_EVERY": str(every)}
            recompute = ("--preempt-ram", "0", "--cache-ram", "0")
            yield Case(f"parked every {every} tokens, copied back", alone, env=parks)
            yield Case(f"parked every {every} tokens, computed again", alone, recompute, parks)
            yield Case("in batches of 32", alone, ("--batch-size", "32"))
            yield Case(f"threads: {threads}", alone, ("--threads", threads))
            yield Case("after a restart", alone, is_fresh=True)

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        alone = played[ALONE].chats
        for name, one in played.items():
            if name != ALONE:
                yield self._row(name, one, alone)

    def _row(self, name: str, one: Played, alone: Sequence[Chat]) -> Row:
        same = num_same(one.chats, alone)
        figures = {
            **counts(one.chats),
            "as alone": same,
            "first difference at character": _first_difference(one.chats, alone),
            "prompt tokens found": sum(chat.num_cached for chat in one.chats),
            **told(one.counted, {"parks": PARKED, "tokens recomputed": RECOMPUTED}),
            **told(one.counted, {"MiB copied back": BACK}, MIB),
        }
        faults = [] if same == len(alone) else [f"{same} of {len(alone)} texts as alone"]
        if one.counted and not self._has_happened(name, one):
            faults.append("did not happen")
        return Row(name, figures, faults)

    def _has_happened(self, name: str, one: Played) -> bool:
        if name == AGAIN:
            return any(chat.num_cached for chat in one.chats)
        needed = BACK if "copied" in name else RECOMPUTED if "computed" in name else ""
        return not needed or one.counted[PARKED] > 0 < one.counted[needed]


def requests(num_tokens: int, first: int = 0) -> Bodies:
    """Those of one kind of sampling stand together."""
    chats = pressing_chats(num_tokens, NUM_BESIDE, first=first)
    return [
        (f"{name}, {kind}", {**body, **sampling})
        for kind, sampling in SAMPLING.items()
        for name, body in chats
    ]


def _other_threads(url: str) -> str:
    """A number of them that the server there does not have."""
    try:
        props = httpx.get(f"{url}/props").raise_for_status().json()
    except httpx.HTTPError as error:
        raise EngineError(f"the server is gone: {error}") from None
    return "1" if props["engine"]["threads"] > 1 else "2"


def _first_difference(chats: Sequence[Chat], alone: Sequence[Chat]) -> int | None:
    """Of all texts that differ, the least."""
    texts = {chat.name: chat.text for chat in alone}
    pairs = ((chat.text, texts.get(chat.name, "")) for chat in chats)
    return min((first_difference(a, b) for a, b in pairs if a != b), default=None)
