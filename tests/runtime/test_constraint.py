"""Masks on their way from a sequence's constraint to the engine's draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.builders import GREEDY, SchedulerOptions
from tests.runtime.clients import Bench, Client, generation, letters, solo_tokens

from kvalet.core.plan import Draw, Grant, PageId, Phase, SeqId
from kvalet.engine.base import DrawMask
from kvalet.runtime.constraint import masks_of
from kvalet.runtime.inbox import Submit
from kvalet.runtime.stream import Stream


def only(tokens: Sequence[int]) -> bytes:
    bits = bytearray(32)
    for token in tokens:
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


@dataclass
class Rising:
    """Each token is larger than the one before it by at most ten, until it has wrapped around."""

    taken: list[int] = field(default_factory=list[int])

    def mask(self, ahead: Sequence[int]) -> bytes | None:
        last = [*self.taken, *ahead][-1:]
        return only([(last[0] + i) % 256 for i in range(1, 11)]) if last else None

    def take(self, token: int) -> None:
        self.taken.append(token)


def test_the_masks_of_drafts_look_ahead() -> None:
    draws = tuple(Draw(GREEDY, index) for index in (4, 5, 6))
    grant = Grant(SeqId(1), Phase.DECODE, 9, (50, 60, 70), (PageId(0),), draws)
    masks = list(masks_of(grant, Rising([50])))
    assert masks == [
        DrawMask(SeqId(1), index, only(range(after + 1, after + 11)))
        for index, after in ((4, 50), (5, 60), (6, 70))
    ]
    first = replace(grant, draws=(Draw(GREEDY, 0),))
    assert list(masks_of(first, Rising())) == []  # any token


def run(options: SchedulerOptions) -> tuple[Bench, Rising, list[Client]]:
    """A constrained chat beside a free one."""
    bench = Bench(options=options)
    clients = [Client(generation(salt)) for salt in (1, 2)]
    constraint = Rising()
    for number, client in enumerate(clients, start=1):
        bench.num_live += 1
        stream = Stream.of(SeqId(number), client.wanted, client, bench.now)
        stream.constraint = constraint if number == 1 else None
        bench.inbox.put(Submit((stream,)))
    bench.loop.run()
    return bench, constraint, clients


@pytest.mark.parametrize("options", [{}, {"preempt_every": 8}])
def test_a_constrained_chat_keeps_to_it_and_disturbs_no_other(options: SchedulerOptions) -> None:
    bench, constraint, (bound, free) = run(options)
    steps = [(b - a) % 256 for a, b in zip(constraint.taken, constraint.taken[1:], strict=False)]
    assert len(steps) == 49
    assert all(1 <= step <= 10 for step in steps)
    assert bound.text == letters(constraint.taken)
    assert bound.text != letters(solo_tokens(bound.wanted, bench.n_ctx))
    assert free.text == letters(solo_tokens(free.wanted, bench.n_ctx))
    assert (bench.scheduler.counters.n_preempt > 0) == bool(options)


def test_parks_change_nothing_for_a_constrained_chat() -> None:
    assert run({})[1].taken == run({"preempt_every": 8})[1].taken
