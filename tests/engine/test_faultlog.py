"""Failed copies are told to the operator: each reason, and none of them a thousand times."""

import pytest

from kvalet.engine.host.faultlog import QUIET_S, FaultLog


class Time:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def full(place: int) -> str:
    return f"cannot write page-{place}.kv: No space left on device"


def test_each_reason_is_told_once_a_minute_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = Time()
    log = FaultLog(clock)
    for place in range(100):
        log.note(full(place))
    log.note("state file page-7.kv: page 0 is damaged")
    clock.now += QUIET_S - 1
    log.note(full(3))
    clock.now += 1
    log.note(full(4))
    clock.now += QUIET_S
    log.note(full(5))
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("kvalet.engine", "WARNING")
    ] * 4
    assert [record.getMessage() for record in caplog.records] == [
        f"a copy failed: {full(0)}",
        "a copy failed: state file page-7.kv: page 0 is damaged",
        f"a copy failed: {full(4)} (and 100 times since the last such line)",
        f"a copy failed: {full(5)}",
    ]
