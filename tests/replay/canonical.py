"""Plans, changes and counters as text, whatever the classes that carry them look like.

The only place that reads their attributes: when a class is reshaped, this follows it and the text
stays. One line of JSON each; no class name, no `repr`, no default of a dataclass gets in.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import cache

from kvalet.core.changes import Change, Counters
from kvalet.core.plan import (
    AnyTransfer,
    Draw,
    Grant,
    HostId,
    PageId,
    StateId,
    StateLoad,
    StateSave,
    StepPlan,
)
from kvalet.core.request import SamplingParams

COUNTERS = (
    *("n_preempt", "n_resume", "n_preempt_swap", "n_preempt_recompute", "n_recompute_tokens"),
    *("n_preempt_fail", "pages_out", "pages_in", "pages_mirrored", "parked_pages"),
    *("parked_pages_mirrored", "prefix_pages_pool", "prefix_pages_host", "prefix_pages_missed"),
    *("n_steps_beside_copy", "n_waits_for_copy"),
)


def line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def plan_line(plan: StepPlan) -> str:
    state_copies = [[copy.src.row, copy.dst.row] for copy in plan.state_copies]
    return line(
        {
            "step": plan.step,
            "freed": list(plan.freed),
            "host_freed": [_place(host) for host in plan.host_freed],
            "copies": [[copy.src, copy.dst] for copy in plan.page_copies],
            "shifts": [[list(shift.pages), shift.distance] for shift in plan.page_shifts],
            "grants": [_grant(grant) for grant in plan.grants],
            "transfers": [_transfer(transfer) for transfer in plan.transfers],
            **({"state_copies": state_copies} if state_copies else {}),
        }
    )


def draw_index(grant: Grant) -> int | None:
    """Which generated token the grant draws, from 0; the last, where it draws several."""
    return grant.draws[-1].index if grant.draws else None


def change_line(step: int, change: Change) -> str:
    reason = None if change.reason is None else change.reason.value
    parked = change.parked
    how = [None, None] if parked is None else [parked.mode.value, parked.why]
    return line(["change", step, change.kind.value, change.seq_id, reason, *how])


def counters_line(counters: Counters) -> str:
    return line({name: getattr(counters, name) for name in COUNTERS})


def _grant(grant: Grant) -> list[object]:
    """What came later than the first traces is there only where it is used."""
    what = [grant.seq_id, grant.start, list(grant.tokens), list(grant.pages)]
    draws = [[draw.index, _draw_digest(draw)] for draw in grant.draws] or [[None, None]]
    more: list[object] = []
    if grant.adapter is not None:
        more.append(["adapter", grant.adapter.name, grant.adapter.scale])
    if grant.state is not None:
        more.append(["state", grant.state.row])
    more += [["input", i.start, i.num_cells, i.digest.hex()] for i in grant.inputs]
    return [*what, *draws[0], *draws[1:], *more]


def _draw_digest(draw: Draw) -> str:
    return _digest([*_params(draw.params), draw.recent])


@cache
def _params(params: SamplingParams) -> tuple[object, ...]:
    return (
        *(params.temperature, params.top_k, params.top_p, params.min_p, params.typical_p),
        *(params.repeat_penalty, params.repeat_last_n),
        *(params.presence_penalty, params.frequency_penalty, params.logit_bias),
        *(params.seed, params.prompt_index, params.choice, params.num_probs, params.logprobs),
    )


def _transfer(transfer: AnyTransfer) -> list[object]:
    match transfer:
        case StateSave():
            tokens, pages = _digest(transfer.tokens), _places(transfer.pages)
            return ["save", transfer.transfer_id, transfer.path, tokens, pages]
        case StateLoad():
            tokens, moves = _digest(transfer.tokens), [[i, _place(h)] for i, h in transfer.moves]
            return ["load", transfer.transfer_id, transfer.path, tokens, moves]
        case _:
            moves = [_places(move) for move in transfer.moves]
            direction = transfer.direction.value
            return ["copy", transfer.transfer_id, transfer.seq_id, direction, moves]


def _places(places: Iterable[PageId | StateId | HostId]) -> list[object]:
    return [_place(place) for place in places]


def _place(place: PageId | StateId | HostId) -> object:
    match place:
        case HostId():
            return [place.place, place.tier.value]
        case StateId():
            return {"state": place.row}
        case _:
            return place


def _digest(value: object) -> str:
    return hashlib.blake2b(line(value).encode(), digest_size=8).hexdigest()
