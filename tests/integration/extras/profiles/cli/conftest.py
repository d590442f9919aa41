"""The program in a folder of the test's own, with servers that all tests share."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.team import Compilewatch, run_here
from tests.warm import WarmLauncher
from tests.warm_profilers import WarmProfilers


@pytest.fixture(scope="package", autouse=True)
def servers() -> Iterator[None]:
    """The servers of all profiles of this package end with it."""
    yield
    WarmProfilers.close_all()


@pytest.fixture
def compilewatch(
    tmp_path: Path, warm_launcher: WarmLauncher, monkeypatch: pytest.MonkeyPatch
) -> Compilewatch:
    monkeypatch.setattr("compilewatch.extras.profiles.cli.infer.Profilers", WarmProfilers)
    variables = {"NO_COLOR": "1", "COMPILEWATCH_OUTPUT_DIR": str(tmp_path / "outputs")}
    return functools.partial(run_here, tmp_path, variables)
