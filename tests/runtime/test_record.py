"""The record of steps: what the simulator's fit reads is what the loop did."""

import json
from pathlib import Path

import pytest
from tests.runtime.clients import Bench, Client, generation

from kvalet.core.plan import (
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
    Transfer,
    TransferId,
)
from kvalet.core.request import SamplingParams
from kvalet.errors import ConfigError
from kvalet.runtime.record import StepRecorder
from kvalet.sim.calibration import StepRecord, load

BESIDE = Grant(
    SeqId(1), Phase.DECODE, 40, (7,), (PageId(0), PageId(1)), (Draw(SamplingParams(), 3),)
)
PROMPT = Grant(SeqId(2), Phase.PREFILL, 0, (1, 2, 3), (PageId(2),))


def recorder_of(path: Path) -> StepRecorder:
    return StepRecorder(path, page_bytes=64, is_async=True)


def transfer(number: int, direction: Direction, num_pages: int) -> Transfer:
    moves = tuple((PageId(page), HostId(page)) for page in range(num_pages))
    return Transfer(TransferId(number), SeqId(number), direction, moves)


def test_a_line_tells_what_was_computed_and_what_landed(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "record.jsonl")
    out, back = transfer(1, Direction.OUT, 3), transfer(2, Direction.IN, 2)
    broken = transfer(3, Direction.OUT, 9)
    both = StepPlan(1, grants=(BESIDE, PROMPT), transfers=(out, back, broken))
    failed = {broken.transfer_id: Fault("no memory")}
    recorder.add(both, StepOutcome(failed_transfers=failed, compute_s=0.25, copy_s=0.125), 0.5)
    recorder.add(StepPlan(2), StepOutcome(landed=(out.transfer_id,), copy_s=0.0625), 0.001)
    alone = StepPlan(3, grants=(BESIDE,))
    recorder.add(alone, StepOutcome(landed=(back.transfer_id,), compute_s=0.125), 0.25)
    recorder.close()
    recorder.close()
    assert load(tmp_path / "record.jsonl") == [
        StepRecord(2, 1, 41, 3, 6, 1, 0.25, 0.5, 64, copy_s=0.125),
        StepRecord(1, 1, 41, 0, 0, 1, 0.125, 0.25, 64, pages_out=3, pages_in=2, idle_copy_s=0.0625),
    ]


def test_the_loop_records_its_steps_and_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(json.dumps({"sequences": 1}) + "\n")
    bench = Bench(options={"preempt_every": 20}, recorder=recorder_of(path))
    bench.run(Client(generation(1)), Client(generation(2)))
    first, *lines = path.read_text().splitlines()
    assert json.loads(first) == {"sequences": 1}  # lines are added
    path.write_text("\n".join(lines))
    found = load(path)
    steps = [plan for plan in bench.plans if plan.grants]
    assert [step.sequences for step in found] == [len(plan.grants) for plan in steps]
    moved = dict.fromkeys(Direction, 0)
    for plan in bench.plans:
        for copy in plan.transfers:
            assert isinstance(copy, Transfer)
            moved[copy.direction] += len(copy.moves)
    assert sum(step.pages_out for step in found) == moved[Direction.OUT] > 0
    assert sum(step.pages_in for step in found) == moved[Direction.IN] > 0


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^LLAMA_SERVER_RECORD: .*none/x: No such file"):
        recorder_of(tmp_path / "none" / "x")


def test_a_disk_that_is_full_ends_the_record_only(caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorder_of(Path("/dev/full"))
    plan = StepPlan(1, grants=(BESIDE,))
    for _ in range(1000):
        recorder.add(plan, StepOutcome(), 0.5)
    recorder.close()
    assert [record.message for record in caplog.records] == [
        "the record of steps ends here: [Errno 28] No space left on device"
    ]
