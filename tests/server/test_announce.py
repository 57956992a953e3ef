"""What the terminal says at load."""

from typing import Literal

import pytest

from kvalet.cli.announce import facts
from kvalet.engine.base import EngineInfo, EngineReport
from tests.server.edge import Edge


@pytest.mark.parametrize(("copies", "is_said"), [("asynchronous", False), ("synchronous", True)])
def test_copies_that_steps_wait_for_are_said(
    edge: Edge, copies: Literal["asynchronous", "synchronous"], is_said: bool
) -> None:
    report = EngineReport("CPU", 2, "plain", copies=copies)
    said = list(facts(edge.state.model, EngineInfo(4, 64, 258, 512, bytes(32), report)))
    assert any("waits for copies" in line for line in said) is is_said
