"""Every kernel test runs on every instruction set this machine has."""

import pytest

from kvalet.engine import native


@pytest.fixture(scope="session", params=native.available())
def library(request: pytest.FixtureRequest) -> native.NativeLibrary:
    return native.load(request.param)


@pytest.fixture(scope="session")
def plain() -> native.NativeLibrary:
    """The reference of the other instruction sets."""
    return native.load("plain")
