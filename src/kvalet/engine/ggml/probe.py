"""The exactness probe: does this machine compute a token to the same bits at every width?

Runs one layer of every kind, and the output layer, at the widths a step can have, and compares
cells and logits with those of small steps, bit for bit (ADR 0003). What is found for a width is
true whatever the others, so a time budget may leave some of them unproven.
"""

import hashlib
import logging
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kvalet.core.plan import PAGE_CELLS, Draw, Grant, PageId, Phase, SeqId, pages_for
from kvalet.core.request import SamplingParams
from kvalet.engine.base import Exactness
from kvalet.engine.ggml.batch import Limits
from kvalet.engine.ggml.cache import FactCache
from kvalet.engine.ggml.graphs import bucket
from kvalet.engine.ggml.loaded import LoadedModel
from kvalet.engine.ggml.runner import Runner

logger = logging.getLogger(__name__)

SMALL_STEP: Final = 8  # rows of a reference step past the positions whose logits are all needed
ANY_DRAW: Final = Draw(SamplingParams(temperature=0.0), 0)

Table: TypeAlias = tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A step of `num_rows` rows: all of one sequence, or each the draw of a sequence of its own. So
    its name is a width in tokens, or in rows that reach the output layer."""

    num_rows: int
    is_one_sequence: bool

    @property
    def name(self) -> str:
        return f"{self.num_rows} {'tokens' if self.is_one_sequence else 'outputs'}"


class CutModel:
    """A model of one layer of every kind, computing in a pool of its own."""

    def __init__(self, loaded: LoadedModel, limits: Limits) -> None:
        """Two tables of pages, each for as many cells as a step of the limits has rows."""
        num_pages = pages_for(limits.max_rows)
        self.reference: Table = tuple(PageId(page) for page in range(num_pages))
        self.tried: Table = tuple(PageId(num_pages + page) for page in range(num_pages))
        self.limits = replace(limits, num_pages=2 * num_pages)
        self.granularity = loaded.weights.granularity
        layers = loaded.model.distinct_layers()
        self._runner = Runner(loaded, self.limits, poison=True, layers=layers)

    def close(self) -> None:
        self._runner.close()

    def run(self, grants: list[Grant]) -> list[bytes]:
        """Digests of the logits of the grants' last rows."""
        return [_digest(row.tobytes()) for row in self._runner.run(grants).logits]

    def cells(self, table: Table, count: int) -> list[bytes]:
        """What the first `count` cells hold, page by page."""
        return [
            self._runner.pool.cells(page, min(PAGE_CELLS, count - index * PAGE_CELLS))
            for index, page in enumerate(table[: pages_for(count)])
        ]

    def clear(self, table: Table) -> None:
        self._runner.pool.forget(table)

    def grant(self, start: int, end: int, table: Table) -> Grant:
        """Positions `start` to `end` of the one text that everything here computes."""
        num_vocab = self.limits.num_vocab
        tokens = tuple((7919 * position + 13) % num_vocab for position in range(start, end))
        return Grant(SeqId(start), Phase.PREFILL, start, tokens, table, (ANY_DRAW,))


class Reference:
    """The text computed in small steps, as far as it was needed."""

    def __init__(self, model: CutModel) -> None:
        self._model = model
        self._reached = 0
        self.logits: dict[int, bytes] = {}  # digests, by position

    def reach(self, count: int) -> None:
        """Compute the first `count` positions; the last one's logits are known then, and those of
        all positions that can be outputs of one step."""
        while self._reached < count:
            is_single = self._reached < self._model.limits.max_seqs
            end = min(count, self._reached + (1 if is_single else SMALL_STEP))
            grant = self._model.grant(self._reached, end, self._model.reference)
            self.logits[end - 1] = self._model.run([grant])[0]
            self._reached = end


def prove(
    loaded: LoadedModel, limits: Limits, budget_s: float, cache: FactCache, *key: object
) -> Exactness:
    """Probe within a budget of seconds, going on from what the cache holds under `key`, which says
    all that the bits depend on."""
    key = ("exactness", loaded.backend.description, loaded.backend.threads, *key)
    known = cache.get(*key)
    with closing(CutModel(loaded, limits)) as model:
        found = probe(model, budget_s, known if isinstance(known, list) else ())
    cache.put(found.same, *key)
    if found.differ:
        logger.warning(
            "this machine computes other bits in steps of %s: batching can change text",
            ", ".join(found.differ),
        )
    return found


def probe(model: CutModel, budget_s: float, known: Collection[str] = ()) -> Exactness:
    """Try all widths, the cheapest first, until the budget is spent; what is `known` to be the same
    is not tried again."""
    reference = Reference(model)
    same, differ, unproven = list[str](), list[str](), list[str]()
    deadline, row_s = time.perf_counter() + budget_s, 0.0
    for trial in _trials(model):
        start = time.perf_counter()
        if trial.name in known:
            same.append(trial.name)
        elif start + trial.num_rows * row_s > deadline:
            unproven.append(trial.name)
        else:
            is_same = _is_same(model, reference, trial)
            (same if is_same else differ).append(trial.name)
            row_s = (time.perf_counter() - start) / trial.num_rows
    return Exactness(tuple(same), tuple(differ), tuple(unproven))


def _trials(model: CutModel) -> list[Trial]:
    most_rows, most_seqs = model.limits.max_rows, min(model.limits.max_seqs, model.limits.max_rows)
    trials = [Trial(size, is_one_sequence=True) for size in _sizes(most_rows, model.granularity)]
    trials += [Trial(size, is_one_sequence=False) for size in _sizes(most_seqs, model.granularity)]
    return sorted(trials, key=lambda trial: (trial.num_rows, trial.is_one_sequence))


def _sizes(most: int, granularity: int) -> set[int]:
    """The most rows that each of the graphs there can be is used for."""
    return {min(most, bucket(count, granularity, most)) for count in range(1, most + 1)}


def _is_same(model: CutModel, reference: Reference, trial: Trial) -> bool:
    count, table = trial.num_rows, model.tried
    reference.reach(count)
    model.clear(table)
    if trial.is_one_sequence:
        expected = [reference.logits[count - 1]]
        logits = model.run([model.grant(0, count, table)])
    else:
        expected = [reference.logits[position] for position in range(count)]
        logits = model.run([model.grant(at, at + 1, table) for at in range(count)])
    return logits == expected and model.cells(table, count) == model.cells(model.reference, count)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
