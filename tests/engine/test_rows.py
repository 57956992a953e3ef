"""Rows of a step: which cell each has, where rope turns it to, and which cells it sees."""

import pytest

from kvalet.core.plan import Draw, Grant, PageId, Phase, SeqId
from kvalet.core.request import SamplingParams
from kvalet.engine.ggml.batch import Batch, Limits
from kvalet.errors import EngineError

DRAW = Draw(SamplingParams(), 0)


def rows(seq_id: int, start: int, count: int, draws: int = 1) -> Grant:
    pages = (PageId(seq_id), PageId(seq_id + 1))
    return Grant(SeqId(seq_id), Phase.PREFILL, start, (7,) * count, pages, (DRAW,) * draws)


def test_text_is_rotated_to_its_cell_and_sees_up_to_its_own() -> None:
    batch = Batch(Limits(num_vocab=10, num_pages=8, max_rows=12, max_seqs=4))
    refused = batch.fill([rows(1, 30, 4, draws=2), rows(9, 0, 3), rows(5, 2, 1)])
    assert list(refused) == [9]
    assert (batch.num_rows, batch.num_seqs) == (5, 2)
    assert list(batch.cells[:5]) == [30, 31, 32, 33, 2]
    assert list(batch.positions[:5]) == [30, 31, 32, 33, 2]
    assert list(batch.ends[:5]) == [31, 32, 33, 34, 3]
    assert list(batch.row_seq[:5]) == [0, 0, 0, 0, 1]
    assert list(batch.outputs[:3]) == [2, 3, 4]
    assert [seq_id for seq_id, _ in batch.draws] == [1, 1, 5]
    batch.fill([])
    assert not batch.positions.any()
    assert not batch.draws


def test_more_than_a_step_takes_is_refused_before_anything_is_laid_out() -> None:
    batch = Batch(Limits(num_vocab=10, num_pages=8, max_rows=4, max_seqs=2))
    batch.check([rows(1, 0, 2), rows(2, 0, 2)])
    with pytest.raises(EngineError, match="5 tokens in a step of 4"):
        batch.check([rows(1, 0, 5)])
    with pytest.raises(EngineError, match="3 sequences in a step of 2"):
        batch.check([rows(seq_id, 0, 1) for seq_id in range(3)])
    with pytest.raises(EngineError, match="3 draws in a step of 2"):
        batch.check([rows(1, 0, 4, draws=3)])
