from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.records import Plan, Result
from compilewatch.store import Store
from tests import factories

EMPTY = Plan(requests=(), skipped=(), digest="plan")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "outputs")


@pytest.fixture
def stored(store: Store) -> Callable[..., str]:
    """Writes a finished run of these results; returns its id."""

    def write(*results: Result, state: str = "finished", baseline: str | None = None) -> str:
        opened = factories.run(
            "", state="running", planned=len(results), wall_seconds=None, baseline=baseline
        )
        with store.create_run(opened, EMPTY) as writer:
            writer.append(results)
            writer.finish(state)
            return writer.run.id

    return write
