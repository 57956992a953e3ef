"""What the terminal says at load."""

import pytest

from kvalet.cli.announce import facts
from kvalet.engine.base import EngineInfo
from tests.server.edge import Edge


@pytest.mark.parametrize(("copies", "is_said"), [("asynchronous", False), ("synchronous", True)])
def test_copies_that_steps_wait_for_are_said(edge: Edge, copies: str, is_said: bool) -> None:
    report = {"device": "CPU", "native": "plain", "threads": 2, "copies": copies}
    said = list(facts(edge.state.model, EngineInfo(4, 64, 258, 512, bytes(32), report)))
    assert any("waits for copies" in line for line in said) is is_said
