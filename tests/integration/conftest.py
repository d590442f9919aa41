"""The warm worker servers of this process, which integration tests of all packages share."""

from collections.abc import Iterator

import pytest

from tests.ray_nodes import bare_cache, bare_ray, ray_cluster, warm_ray  # noqa: F401
from tests.warm import WarmLauncher, warm


@pytest.fixture(scope="session")
def warm_launcher() -> Iterator[WarmLauncher]:
    """A launcher whose servers have torch, for all tests that need no server of their own."""
    yield warm()
    WarmLauncher.close_all()
