"""Drives an engine by hand, the way a scheduler would: sequences with tables of pages, and steps
made of their grants."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvalet.core.plan import (
    Direction,
    Draw,
    Grant,
    HostId,
    PageId,
    Phase,
    Sampled,
    SeqId,
    StepOutcome,
    StepPlan,
    Transfer,
    TransferId,
    pages_for,
)
from kvalet.core.request import SamplingParams
from kvalet.engine.base import Engine

ALL_LOGPROBS = SamplingParams(temperature=0.0, logprobs=True, num_probs=5)


@dataclass(slots=True)
class Chat:
    """One sequence: all its tokens, how many are computed, and the pages it may fill."""

    seq_id: SeqId
    tokens: list[int]
    pages: tuple[PageId, ...]
    params: SamplingParams = ALL_LOGPROBS
    num_computed: int = 0
    drawn: list[Sampled] = field(default_factory=list[Sampled])

    def grant(self, chunk: int) -> Grant:
        """The next `chunk` tokens at most; a draw if they are the last."""
        end = min(len(self.tokens), self.num_computed + chunk)
        recent = tuple(self.tokens) if self.params.has_penalties else ()
        return Grant(
            self.seq_id,
            Phase.PREFILL,
            self.num_computed,
            tuple(self.tokens[self.num_computed : end]),
            self.pages[: pages_for(end)],
            (Draw(self.params, len(self.drawn), recent),) if end == len(self.tokens) else (),
        )

    def take(self, grant: Grant, outcome: StepOutcome) -> None:
        assert self.seq_id not in outcome.failed, outcome.failed
        self.num_computed += len(grant.tokens)
        for sampled in outcome.sampled[self.seq_id] if grant.draws else ():
            self.drawn.append(sampled)
            self.tokens.append(sampled.token)


def chat(
    seq_id: int,
    prompt: Iterable[int],
    pages: Iterable[int],
    params: SamplingParams = ALL_LOGPROBS,
    num_computed: int = 0,
) -> Chat:
    table = tuple(PageId(page) for page in pages)
    return Chat(SeqId(seq_id), list(prompt), table, params, num_computed)


def step(engine: Engine, chats: Iterable[Chat], chunk: int) -> None:
    """All chats together take up to `chunk` tokens each."""
    grants = [(chat, chat.grant(chunk)) for chat in chats]
    outcome = engine.execute(StepPlan(0, grants=tuple(grant for _, grant in grants)))
    for chat_, grant in grants:
        chat_.take(grant, outcome)


def generate(engine: Engine, chats: list[Chat], count: int, chunk: int = 512) -> None:
    """Until every chat has drawn `count` tokens; one that has them stops taking part."""
    while unfinished := [chat for chat in chats if len(chat.drawn) < count]:
        step(engine, unfinished, chunk)


def copy_out(engine: Engine, chat: Chat, hosts: Iterable[int]) -> None:
    """Park: the pages go to the host and are forgotten."""
    _transfer(engine, chat, Direction.OUT, hosts)
    engine.execute(StepPlan(0, freed=chat.pages))


def copy_in(engine: Engine, chat: Chat, pages: Iterable[int], hosts: Iterable[int]) -> None:
    """Resume in other pages."""
    chat.pages = tuple(PageId(page) for page in pages)
    _transfer(engine, chat, Direction.IN, hosts)


def _transfer(engine: Engine, chat: Chat, direction: Direction, hosts: Iterable[int]) -> None:
    used = chat.pages[: pages_for(chat.num_computed)]
    moves = tuple((page, HostId(host)) for page, host in zip(used, hosts, strict=False))
    assert len(moves) == len(used)
    transfer = Transfer(TransferId(1), chat.seq_id, direction, moves)
    outcome = engine.execute(StepPlan(0, transfers=(transfer,)))
    assert outcome.landed == (TransferId(1),), outcome.failed_transfers
