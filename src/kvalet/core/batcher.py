"""Which tokens each resident sequence computes in a step, and the pages they go to.

Decoders first, one token each; what is left of the step's budget goes to prefill and replay. A
sequence that gets no page stays at its token boundary; nothing computed is lost.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from kvalet.core import shift
from kvalet.core.config import SchedulerConfig
from kvalet.core.guard import Guard
from kvalet.core.pacing import Pacing
from kvalet.core.pages import PagePool
from kvalet.core.parking import Parking
from kvalet.core.plan import PAGE_CELLS, Draw, Grant, Phase, pages_for
from kvalet.core.room import Pace
from kvalet.core.sequence import Move, PageName, Sequence, Status

FILLING = (Status.PREFILL, Status.REPLAY)
PHASES: Final = {
    Status.PREFILL: Phase.PREFILL,
    Status.DECODE: Phase.DECODE,
    Status.REPLAY: Phase.REPLAY,
}


class Batcher:
    def __init__(
        self, config: SchedulerConfig, pool: PagePool, parking: Parking, guard: Guard
    ) -> None:
        self._config = config
        self._pool = pool
        self._parking = parking
        self._guard = guard
        self.pacing = Pacing(config.steps.prefill_stretch)

    def pace(self, active: Iterable[Sequence], *, joining: bool = False) -> Pace:
        """How fast sequences go. While somebody decodes, a step's prefill is one small chunk,
        shared fairly; `joining` counts one more that would fill."""
        statuses = [seq.status for seq in active]
        num_filling = sum(status in FILLING for status in statuses) + joining
        num_decoding = statuses.count(Status.DECODE)
        total = self._config.batch_size - num_decoding
        if num_decoding:
            total = min(total, self._config.steps.decode_chunk or self.pacing.chunk())
        chunk = max(1, total // max(1, num_filling))
        config = self._config
        margin = config.preemption.replay_margin
        return Pace(chunk, config.lookahead_steps, config.n_ctx, margin)

    def grants(self, active: list[Sequence]) -> Iterator[tuple[Sequence, Grant | None]]:
        """Who takes part and with what; None for one that no page can be had for."""
        for seq in active:
            if seq.status is Status.DECODE:
                with self._guard(seq):
                    yield seq, self._grant(seq, 1)
        yield from self._fill(active)

    def _fill(self, active: list[Sequence]) -> Iterator[tuple[Sequence, Grant | None]]:
        """Prefill and replay. A page that one sequence fills in this step is not filled by
        another as well: that one waits a step and takes it by name."""
        chunk = self.pace(active).chunk
        being_filled: dict[PageName, None] = {}
        for seq in active:
            if seq.status not in FILLING:
                continue
            with self._guard(seq):
                self._parking.take_named(seq)
                if self._next_name(seq) in being_filled:
                    continue
                num_left = self._num_to_fill(seq)
                if not num_left:
                    seq.move(Move.COMPUTED)
                    continue
                grant = self._grant(seq, _up_to_a_boundary(seq, num_left, chunk))
                if grant is not None:
                    being_filled.update(dict.fromkeys(self._filled_names(seq, grant)))
                yield seq, grant

    def _grant(self, seq: Sequence, num_tokens: int) -> Grant | None:
        start, end = seq.num_computed, seq.num_computed + num_tokens
        num_missing = pages_for(end) - len(seq.table)
        if num_missing > self._pool.num_clear:
            return None
        seq.table.extend(self._pool.take() for _ in range(num_missing))
        draws = (_draw(seq),) if end == len(seq.tokens) else ()
        tokens = tuple(seq.tokens[start:end])
        adapter, phase = seq.request.adapter, PHASES[seq.status]
        return Grant(seq.seq_id, phase, start, tokens, tuple(seq.table), draws, adapter)

    def _num_to_fill(self, seq: Sequence) -> int:
        """Tokens to compute before it generates; the last known one waits for a shift that is due,
        as it did when it was decoding."""
        return seq.num_pending - shift.is_due(seq, self._config.n_ctx)

    def _next_name(self, seq: Sequence) -> PageName | None:
        """Name of the page it would fill next, where it could take that from another."""
        index = seq.num_computed // PAGE_CELLS
        if seq.num_computed % PAGE_CELLS or index >= seq.max_named:
            return None
        return self._parking.name(seq, index)

    def _filled_names(self, seq: Sequence, grant: Grant) -> Iterator[PageName]:
        end = grant.start + len(grant.tokens)
        for index in range(grant.start // PAGE_CELLS, end // PAGE_CELLS):
            name = self._parking.name(seq, index)
            if name is not None:
                yield name


def _up_to_a_boundary(seq: Sequence, num_left: int, chunk: int) -> int:
    """How many of `num_left` tokens to compute next: at most `chunk`, ending on a page boundary
    where one is in reach, since pages can be taken by name only there."""
    if num_left <= chunk:
        return num_left
    end = seq.num_computed + chunk
    to_boundary = end - end % PAGE_CELLS - seq.num_computed
    return to_boundary if to_boundary > 0 else chunk


def _draw(seq: Sequence) -> Draw:
    params = seq.request.sampling
    if not params.has_penalties:
        return Draw(params, seq.num_generated)
    first = 0 if params.repeat_last_n < 0 else -params.repeat_last_n
    return Draw(params, seq.num_generated, tuple(seq.tokens[first:]))
