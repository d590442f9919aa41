"""The warm worker servers of this process, which integration tests of all packages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compilewatch import extras
from tests.warm import WarmLauncher, warm

if extras.is_here("compilewatch.extras.cluster"):
    # The contract of launchers covers all that are registered.
    from tests.ray_nodes import bare_cache, bare_ray, ray_cluster, warm_ray  # noqa: F401


@pytest.fixture(scope="session")
def warm_launcher() -> Iterator[WarmLauncher]:
    """A launcher whose servers have torch, for all tests that need no server of their own."""
    yield warm()
    WarmLauncher.close_all()
