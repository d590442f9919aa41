"""What tests of all packages need: the environments that are not made by `make setup`."""

from __future__ import annotations

import os

import pytest

from compilewatch import environments
from compilewatch.config.settings import load_settings

MADE = {
    "xla": "compilewatch env create xla",
    "torch_2_13": "compilewatch env create torch-2.13 --torch 2.13.0",
}
"""Marker -> the command that makes the environment that its tests need."""


def _is_there(marker: str) -> bool:
    name = MADE[marker].split()[3]
    return environments.read_stamp(name, load_settings().cache_folder) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs an environment that is not there, and say how to get it; CI has them all."""
    for marker, command in MADE.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if not marked or _is_there(marker):
            continue
        if os.environ.get("CI"):
            raise pytest.UsageError(f"{len(marked)} tests need an environment: {command}")
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs an environment: {command}"))


@pytest.fixture(scope="session")
def xla_python() -> str:
    """The interpreter of the environment xla, for tests that have its marker."""
    return environments.interpreter("xla", load_settings().cache_folder).path
