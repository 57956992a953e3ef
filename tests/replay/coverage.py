"""How often the traces exercise what they are there to guard, read from their own text."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import TypeAdapter

from kvalet.core.sequence import Status
from tests.replay.canonical import COUNTERS
from tests.replay.driver import Trace

TALLY = TypeAdapter(dict[str, int])
EVENT = TypeAdapter(list[str | int | None])
ENOUGH: Final = 3  # times each
PARKS = ("pressure", "forced", "rotation", "request")
WANTED: Final = (
    *COUNTERS,
    *("page copy", "shift", "copy out", "copy in", "copy of nobody's", "mark", "disk", "load"),
    *("load landed", "save", "with penalties", "family", "steps of more than one prefill"),
    *("restore failed", "load failed", "fault transfer", "fault no room", "fault compute"),
    *(f"change {kind}" for kind in ("waiting", "preempted", "resumed", "finished", "failed")),
    "change rotation refused",
    *(f"park {why}" for why in PARKS),
    "park over the budget",
    *(f"park {mode}" for mode in ("swap", "disk", "recompute")),
    *(f"finished {reason}" for reason in ("eos", "length", "context")),
    *(f"done {what}" for what in ("park", "resume", "save", "restore", "erase")),
    *("refused add", "refused park", "refused restore"),
    *(f"cancel {status.value}" for status in Status if status is not Status.ENDED),
)

CALM: Final = (
    "no-preempt",
    "to-the-end",
    "state-files-disk",
    "cancels",
)  # are about other things than parks


def missing(traces: list[Trace]) -> list[str]:
    found = counts(traces)
    lacking = [name for name in WANTED if found[name] < ENOUGH]
    return lacking + [f"parks in {trace.scenario.name}" for trace in traces if _is_idle(trace)]


def _is_idle(trace: Trace) -> bool:
    num_parks = TALLY.validate_json(trace.counters)["n_preempt"]
    return num_parks < ENOUGH and trace.scenario.name not in CALM


def counts(traces: list[Trace]) -> Counter[str]:
    found: Counter[str] = Counter()
    for trace in traces:
        found.update(TALLY.validate_json(trace.counters))
        for line in trace.events:
            found.update(_of_event(EVENT.validate_json(line)))
        found.update(_of_plans(trace))
        arrivals = trace.scenario.arrivals
        found["family"] += sum(arrival.choices > 1 for arrival in arrivals)
        found["with penalties"] += sum(arrival.repeat_penalty > 1 for arrival in arrivals)
    return Counter({name: found[name] for name in sorted(found)})


def _of_event(event: list[str | int | None]) -> Iterator[str]:
    what, _, *more = event
    if what == "cancel":
        yield f"cancel {more[1]}"
        return
    yield f"{what} {more[0]}"
    if what == "change":
        _, _, reason, mode, why = more
        if reason is not None:
            yield f"finished {reason}"
        if mode is not None:
            yield f"park {mode}"
            first, _, rest = str(why).partition(", ")
            yield f"park {first}"
            if rest:
                yield "park over the budget"


def _of_plans(trace: Trace) -> Iterator[str]:
    failed = {
        event[3]
        for event in map(EVENT.validate_json, trace.events)
        if event[0] == "fault" and event[2] == "transfer"
    }
    for line in trace.plans:
        plan = json.loads(line)
        yield from ("page copy" for _ in plan["copies"])
        yield from ("shift" for _ in plan["shifts"])
        if sum(len(grant[2]) > 1 for grant in plan["grants"]) > 1:
            yield "steps of more than one prefill"
        if '"disk"' in line:
            yield "disk"
        for transfer in plan["transfers"]:
            yield from _of_transfer(transfer, transfer[1] in failed)


def _of_transfer(transfer: list[object], is_failed: bool) -> Iterable[str]:
    match transfer:
        case ["copy", _, seq_id, direction, moves]:
            yield f"copy {direction}"
            if seq_id is None:
                yield "copy of nobody's"
            if not moves:
                yield "mark"
            if is_failed and direction == "in":
                yield "restore failed"
        case [kind, *_]:
            yield str(kind)
            yield f"{kind} {'failed' if is_failed else 'landed'}"
        case _:
            pass
