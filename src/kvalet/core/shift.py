"""Context shift: an endless sequence at n_ctx forgets the middle of what it knows (behaviour C1).

Whole pages are dropped, so no byte moves: the pages behind get new positions, and their keys are
rotated by the distance. A page that somebody else holds is copied first.
"""

from kvalet.core.pages import PagePool
from kvalet.core.plan import PAGE_CELLS, PageCopy, PageId, PageShift, pages_for
from kvalet.core.sequence import Sequence


def is_due(seq: Sequence, n_ctx: int) -> bool:
    """Whether `seq` has to shift before its next token."""
    return seq.is_endless and len(seq.tokens) >= n_ctx


def pages_kept(seq: Sequence) -> int:
    """First pages that stay where they are: n_keep rounded up, and room left to drop one."""
    keep = seq.num_prompt if seq.request.num_keep < 0 else seq.request.num_keep
    return max(0, min(pages_for(keep), len(seq.table) - 2))


def pages_dropped(seq: Sequence) -> int:
    rest = len(seq.table) - pages_kept(seq)
    wanted = pages_for(seq.request.num_discard) if seq.request.num_discard else rest // 2
    return max(1, min(wanted, rest - 1))


def pages_moved(seq: Sequence) -> list[PageId]:
    """Pages whose keys the shift turns."""
    return seq.table[pages_kept(seq) + pages_dropped(seq) :]


def shift(seq: Sequence, pool: PagePool) -> tuple[list[PageCopy], PageShift]:
    """Drop, copy what is shared, rename nothing: the changed pages lose their names. The caller
    has seen that the pool has clear pages for those copies."""
    keep, drop = pages_kept(seq), pages_dropped(seq)
    copies: list[PageCopy] = []
    for index in range(keep + drop, len(seq.table)):
        page = seq.table[index]
        if pool.refs(page) == 1:
            pool.forget(page)
            continue
        seq.table[index] = pool.take()
        pool.release(page)
        copies.append(PageCopy(page, seq.table[index]))
    dropped = seq.table[keep : keep + drop]
    del seq.table[keep : keep + drop]
    pool.release_all(dropped)
    seq.drop_tokens(keep * PAGE_CELLS, drop * PAGE_CELLS)
    return copies, PageShift(tuple(seq.table[keep:]), -drop * PAGE_CELLS)
