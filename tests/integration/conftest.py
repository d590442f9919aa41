"""The warm worker servers of this process, which integration tests of all packages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.warm import WarmLauncher, warm


@pytest.fixture(scope="session")
def warm_launcher() -> Iterator[WarmLauncher]:
    """A launcher whose servers have torch, for all tests that need no server of their own."""
    yield warm()
    WarmLauncher.close_all()
