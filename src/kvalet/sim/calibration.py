"""Fits the cost model to a record of real steps.

A record is a file with one JSON object a line, one for each step that computed something:

    {"sequences": 4, "decode_rows": 4, "decode_depth": 2048, "prefill_rows": 0, "prefill_depth": 0,
     "draws": 4, "compute_s": 0.0241, "step_s": 0.0259, "page_bytes": 737280, "pages_out": 0,
     "pages_in": 0, "copy_s": 0.0, "idle_copy_s": 0.0, "is_async": true}

`sequences` took part. Rows, depths and draws are `work.work_of(plan)`'s; `compute_s` and `copy_s`
the outcome's; `step_s` is planning to delivery. Copies that are not `is_async` are part of the
step, after it has computed. `pages_out` and `pages_in` are the moves of the
transfers that landed in this step, or after the one before it; `idle_copy_s` is the copier's time
in between, when nothing was computed. Lines stand in the order of the steps.

What a record cannot tell, since nothing was computed or copied in that way, keeps its default.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from kvalet.core.work import StepWork
from kvalet.errors import ConfigError
from kvalet.sim import regression
from kvalet.sim.checked import EXACTLY, AtLeastOne, Count, Seconds, lines_of, parse
from kvalet.sim.costs import CostModel, graph_rows
from kvalet.sim.regression import Floats, non_negative, robust


@dataclass(frozen=True, slots=True)
class StepRecord:
    __pydantic_config__: ClassVar[ConfigDict] = EXACTLY

    sequences: AtLeastOne
    decode_rows: Count
    decode_depth: Count
    prefill_rows: Count
    prefill_depth: Count
    draws: Count
    compute_s: Seconds
    step_s: Seconds
    page_bytes: AtLeastOne
    pages_out: Count = 0
    pages_in: Count = 0
    copy_s: Seconds = 0.0
    idle_copy_s: Seconds = 0.0
    is_async: bool = True

    @property
    def work(self) -> StepWork:
        return StepWork(
            self.decode_rows, self.decode_depth, self.prefill_rows, self.prefill_depth, self.draws
        )

    @property
    def beside_s(self) -> float:
        """The copier's time while the step computed."""
        return self.copy_s if self.is_async else 0.0

    @property
    def outside_s(self) -> float:
        """Neither computing nor waiting for copies."""
        within_s = 0.0 if self.is_async else self.copy_s
        return max(0.0, self.step_s - self.compute_s - within_s)


MAX_SLOW: Final = 0.1  # share; above it, the fit is of a busy machine


@dataclass(frozen=True, slots=True)
class Residual:
    """How far the fitted model is off, as a share of what was measured."""

    what: str
    count: int
    median: float
    p90: float
    total: float  # predicted in all, as a multiple of what was measured in all
    num_slow: int  # took SLOW times what is predicted, or more

    @property
    def is_doubtful(self) -> bool:
        return self.num_slow > MAX_SLOW * self.count


@dataclass(frozen=True, slots=True)
class Calibration:
    costs: CostModel
    residuals: tuple[Residual, ...]
    kept: tuple[str, ...]  # costs that have their defaults


_LINE: Final = TypeAdapter(StepRecord)


def load(path: Path) -> list[StepRecord]:
    """Raises ConfigError, naming line and field."""
    records: list[StepRecord] = []
    for number, line in enumerate(lines_of(path), 1):
        if not line:
            continue
        try:
            records.append(parse(_LINE, line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
    return records


def fit(records: Sequence[StepRecord], source: str) -> Calibration:
    """Raises ConfigError for a record that does not tell costs apart."""
    if not records:
        raise ConfigError(f"{source}: there is no step in it")
    fitted: dict[str, Any] = {
        **_fitted(records, _COMPUTE, lambda s: s.compute_s, robust, source),
        **_fitted(records, _OUTSIDE, lambda s: s.outside_s, robust, source),
        "page_bytes": _page_bytes(records, source),
    }
    episodes = list(_episodes(records))
    if regression.are_distinct(_matrix(episodes, _COPIES)):
        fitted |= _fitted(episodes, _COPIES, lambda s: s.copy_s, non_negative, source)
    costs = CostModel(source=f"{source}, {len(records)} steps", **fitted)
    names = [*_COMPUTE, *_OUTSIDE, *_COPIES]
    kept = tuple(name for name in names if name not in fitted)
    return Calibration(costs, tuple(_residuals(costs, records, episodes)), kept)


_Feature: TypeAlias = Callable[[StepRecord], float]

_COMPUTE: Final[dict[str, _Feature]] = {
    "step_s": lambda step: 1.0,
    "row_s": lambda step: graph_rows(step.work.num_rows),
    "draw_s": lambda step: graph_rows(step.draws),
    "decode_cell_s": lambda step: step.decode_depth,
    "prefill_cell_s": lambda step: step.prefill_depth,
    "beside_share": lambda step: step.beside_s,
}
_OUTSIDE: Final[dict[str, _Feature]] = {
    "host_s": lambda step: 1.0,
    "host_row_s": lambda step: step.sequences,
}
_COPIES: Final[dict[str, _Feature]] = {
    "page_out_s": lambda step: step.pages_out,
    "page_in_s": lambda step: step.pages_in,
}


def _episodes(records: Sequence[StepRecord]) -> Iterator[StepRecord]:
    """Sums over the steps from where a copy begins to where none is under way: a transfer counts
    its pages when it lands, its time while it runs."""
    pages_out = pages_in = 0
    copy_s = 0.0
    for step in [*records, _QUIET]:
        busy_s = step.copy_s + step.idle_copy_s
        if busy_s or step.pages_out or step.pages_in:
            pages_out += step.pages_out
            pages_in += step.pages_in
            copy_s += busy_s
        elif pages_out or pages_in:
            yield replace(_QUIET, pages_out=pages_out, pages_in=pages_in, copy_s=copy_s)
            pages_out = pages_in = 0
            copy_s = 0.0


_QUIET: Final = StepRecord(1, 0, 0, 0, 0, 0, 0.0, 0.0, page_bytes=1)


def _page_bytes(records: Sequence[StepRecord], source: str) -> int:
    sizes = {step.page_bytes for step in records}
    if len(sizes) > 1:
        raise ConfigError(f"{source}: more than one page_bytes: it is of different models")
    return sizes.pop()


def _fitted(
    records: Sequence[StepRecord],
    features: dict[str, _Feature],
    measured: Callable[[StepRecord], float],
    fitter: Callable[[Floats, Floats], Floats],
    source: str,
) -> dict[str, float]:
    """Costs by name of the features that occur."""
    names = _occurring(records, features)
    matrix = _matrix(records, features)
    if not regression.are_distinct(matrix):
        raise ConfigError(
            f"{source}: does not tell {', '.join(names)} apart: record chats of different lengths, "
            "alone and several at once, with their prompts"
        )
    found = fitter(matrix, np.array([measured(step) for step in records], float))
    return dict(zip(names, map(float, found), strict=True))


def _occurring(records: Sequence[StepRecord], features: dict[str, _Feature]) -> list[str]:
    return [name for name, feature in features.items() if any(map(feature, records))]


def _matrix(records: Sequence[StepRecord], features: dict[str, _Feature]) -> Floats:
    names = _occurring(records, features)
    return np.array([[features[name](step) for name in names] for step in records], float)


def _residuals(
    costs: CostModel, records: Sequence[StepRecord], episodes: Sequence[StepRecord]
) -> Iterator[Residual]:
    computed = [costs.compute_s(s.work) + costs.beside_share * s.beside_s for s in records]
    yield _residual("steps, computing", computed, [step.compute_s for step in records])
    steps = [c + costs.outside_s(s.sequences) for c, s in zip(computed, records, strict=True)]
    yield _residual("steps, in all", steps, [step.compute_s + step.outside_s for step in records])
    copies = [e.pages_out * costs.page_out_s + e.pages_in * costs.page_in_s for e in episodes]
    if copies:
        yield _residual("copies", copies, [episode.copy_s for episode in episodes])


def _residual(what: str, predicted: Sequence[float], measured: Sequence[float]) -> Residual:
    pairs = zip(predicted, measured, strict=True)
    errors = [abs(guess / real - 1) for guess, real in pairs if real]
    num_slow = sum(
        real > regression.SLOW * guess for guess, real in zip(predicted, measured, strict=True)
    )
    median, p90 = map(float, np.percentile(errors or [0.0], (50, 90), method="inverted_cdf"))
    total = sum(predicted) / (sum(measured) or 1.0)
    return Residual(what, len(measured), median, p90, total, num_slow)
