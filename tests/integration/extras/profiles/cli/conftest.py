"""The team's folder, and the program with the profiling servers that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.team import compilewatch, team, variables
from tests.warm_profilers import WarmProfilers

__all__ = ["compilewatch", "team", "variables"]


@pytest.fixture(scope="package", autouse=True)
def servers() -> Iterator[None]:
    """The profiling servers of all tests of this package end with it."""
    yield
    WarmProfilers.close_all()


@pytest.fixture(autouse=True)
def warm_profilers(servers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del servers
    monkeypatch.setattr("compilewatch.extras.profiles.cli.infer.Profilers", WarmProfilers)
