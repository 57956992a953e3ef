"""Plans for any engine, and the answers to them, for the tests of what all engines promise."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from kvalet.core.plan import (
    AnyTransfer,
    Direction,
    Draw,
    Fault,
    Grant,
    HostId,
    PageId,
    Phase,
    SeqId,
    StepOutcome,
    StepPlan,
    Tier,
    Transfer,
    TransferId,
    pages_for,
)
from kvalet.core.request import SamplingParams
from kvalet.engine.base import DrawMask, Engine

NUM_PAGES = 24
GREEDY = SamplingParams(temperature=0.0)
PROMPT = tuple((i * 37 + 5) % 200 + 20 for i in range(75))
MAX_POLLS = 10_000


@dataclass
class Steps:
    """Numbers plans, and keeps what became of transfers."""

    engine: Engine
    count: int = 0
    landed: list[TransferId] = field(default_factory=list[TransferId])
    failed: dict[TransferId, Fault] = field(default_factory=dict[TransferId, Fault])

    def run(self, plan: StepPlan, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        self.count += 1
        outcome = self.engine.execute(replace(plan, step=self.count), masks)
        self.landed += outcome.landed
        self.failed.update(outcome.failed_transfers)
        return outcome

    def __call__(self, *grants: Grant, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        return self.run(StepPlan(0, grants=grants), masks)

    def transfer(
        self,
        *transfers: AnyTransfer,
        freed: tuple[PageId, ...] = (),
        host_freed: tuple[HostId, ...] = (),
    ) -> None:
        """Start them and poll until all are over."""
        self.run(StepPlan(0, freed=freed, host_freed=host_freed, transfers=transfers))
        self.until_over(*transfers)

    def until_over(self, *transfers: AnyTransfer) -> None:
        for _ in range(MAX_POLLS):
            if {t.transfer_id for t in transfers} <= {*self.landed, *self.failed}:
                return
            self.run(StepPlan(0))
            time.sleep(0.0005)
        raise AssertionError(f"{transfers} have not ended")


def table(*pages: int) -> tuple[PageId, ...]:
    return tuple(PageId(page) for page in pages)


def hosts(places: Iterable[int], tier: Tier = Tier.RAM) -> tuple[HostId, ...]:
    return tuple(HostId(place, tier) for place in places)


def out(number: int, pages: tuple[PageId, ...], to: tuple[HostId, ...]) -> Transfer:
    return Transfer(TransferId(number), SeqId(1), Direction.OUT, tuple(zip(pages, to, strict=True)))


def back(number: int, pages: tuple[PageId, ...], source: tuple[HostId, ...]) -> Transfer:
    moves = tuple(zip(pages, source, strict=True))
    return Transfer(TransferId(number), SeqId(1), Direction.IN, moves)


def grant(
    tokens: tuple[int, ...], pages: tuple[PageId, ...], start: int = 0, *, draw: int | None = None
) -> Grant:
    pages = pages[: pages_for(start + len(tokens))]
    draws = () if draw is None else (Draw(GREEDY, draw),)
    return Grant(SeqId(1), Phase.PREFILL, start, tokens, pages, draws)


def last_row(pages: tuple[PageId, ...]) -> Grant:
    """The last token of PROMPT, all the others computed before."""
    return grant(PROMPT[74:], pages, 74, draw=0)


def generate(
    step: Steps,
    pages: tuple[PageId, ...],
    count: int = 8,
    chunk: int = 512,
    between: Callable[[int], tuple[PageId, ...] | None] = lambda index: None,
) -> list[int]:
    """`count` tokens after PROMPT; `between` runs before each decode and may give a new table."""
    tokens, done = list(PROMPT), 0
    drawn: list[int] = []
    while len(drawn) < count:
        part = tuple(tokens[done : done + chunk])
        is_last = done + len(part) == len(tokens)
        outcome = step(grant(part, pages, done, draw=len(drawn) if is_last else None))
        assert not outcome.failed
        assert (SeqId(1) in outcome.sampled) == is_last
        done += len(part)
        if is_last:
            drawn.append(outcome.sampled[SeqId(1)][0].token)
            tokens.append(drawn[-1])
            pages = between(len(drawn)) or pages
    return drawn
