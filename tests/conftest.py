"""What tests of all rooms need: the environments that are not made by `make setup`."""

from __future__ import annotations

import pytest

from compilewatch import environments
from compilewatch.config import load_settings

NEEDS_XLA = "needs the environment xla: compilewatch env create xla"


def _xla_is_there() -> bool:
    return environments.read_stamp("xla", load_settings().cache_folder) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the environment xla where there is none, and say how to get it."""
    marked = [item for item in items if item.get_closest_marker("xla")]
    if marked and not _xla_is_there():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=NEEDS_XLA))


@pytest.fixture(scope="session")
def xla_python() -> str:
    """The interpreter of the environment xla."""
    if not _xla_is_there():
        pytest.skip(NEEDS_XLA)
    return environments.interpreter("xla", load_settings().cache_folder).path
