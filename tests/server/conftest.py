"""Edges for the tests of the HTTP side."""

from collections.abc import Iterator

import pytest

from tests.server.edge import Edge, LiveEdge, live_edge


@pytest.fixture
def edge() -> Iterator[Edge]:
    edge = Edge()
    yield edge
    edge.close()


@pytest.fixture(scope="session")
def live() -> Iterator[LiveEdge]:
    with live_edge() as edge:
        yield edge
