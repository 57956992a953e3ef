"""What the fake service says of its two slots: the first is that of `cmpl-1` and can be parked, the
second is idle, what `cmpl-0` left in it can be saved."""

from concurrent.futures import Future

from kvalet.core.request import SamplingParams
from kvalet.errors import Conflict, NotFound
from kvalet.runtime.messages import Histogram, SlotState, SlotView, Snapshot

BUSY, IDLE = 0, 1
LAST_REQUEST = "cmpl-0"


def view_of(slot: int, request_id: str | None) -> Future[SlotView]:
    """The answer to a park or a resume."""
    answer: Future[SlotView] = Future()
    slots = make_snapshot(0).slots
    if slot >= len(slots):
        answer.set_exception(NotFound(f"there is no slot {slot}", "id_slot"))
    elif slot != BUSY or request_id not in (None, slots[0].request_id):
        answer.set_exception(Conflict(f"slot {slot} is idle"))
    else:
        answer.set_result(slots[0])
    return answer


def state_of(
    slot: int, request_id: str | None, state: SlotState, error: Exception | None
) -> Future[SlotState]:
    """The answer to a save, a restore or an erasure: `state`, if nothing is wrong."""
    answer: Future[SlotState] = Future()
    if slot > IDLE:
        answer.set_exception(NotFound(f"there is no slot {slot}", "id_slot"))
    elif slot != IDLE or request_id not in (None, LAST_REQUEST):
        answer.set_exception(Conflict(f"slot {slot} is busy"))
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(state)
    return answer


def make_snapshot(num_live: int) -> Snapshot:
    busy = SlotView(
        slot=0,
        state="decode",
        request_id="cmpl-1",
        is_processing=True,
        is_preempted=True,
        num_prompt_tokens=10,
        num_computed=14,
        num_generated=5,
        max_new_tokens=20,
        n_cells=32,
        n_preempt=3,
        n_recompute=0,
        parked_ms=12.5,
        sampling=SamplingParams(seed=7),
        preempt_mode="swap",
        is_held=True,
        n_cells_host=64,
    )
    idle = SlotView(1)
    counters = {
        "prompt_tokens_total": 100.0,
        "prompt_seconds_total": 2.0,
        "n_preempt_total": 3.0,
        "n_decode_total": 10.0,
        "prefix_pages_host_total": 8.0,
        "n_busy_slots_total": 15.0,
    }
    gauges = {
        "requests_processing": float(num_live),
        "kv_cells_total": 128.0,
        "host_cache_bytes": 64.0,
        "novel": 1.0,
    }
    waits = {"parked_seconds": Histogram((0.5, 1.0, 2.5), (1, 0, 3, 2), 12.25)}
    return Snapshot((busy, idle), gauges, counters, waits)
