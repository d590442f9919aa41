from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.records import Plan, Result
from compilewatch.store import Store, StoredRun
from tests import factories

EMPTY = Plan(requests=(), skipped=(), digest="plan")
FRESH = factories.run("", state="running", wall_seconds=None, finished_at=None)

Stored = Callable[..., str]


def names(run: StoredRun) -> list[str]:
    """The models of the results, in their order."""
    return [result.request.model.name for result in run.results()]


def results(*models: str) -> list[Result]:
    return [factories.result(name) for name in models]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "outputs")


@pytest.fixture
def stored(store: Store) -> Stored:
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
