"""A Ray cluster on this machine, and launchers that are connected to it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import environments
from compilewatch.environments import Environments
from compilewatch.extras.cluster.driver import load_ray
from compilewatch.extras.cluster.launcher import RayLauncher
from tests.integration.launchers import bare_worker

SOON_DEAD = {"health_check_period_ms": 500, "health_check_failure_threshold": 8}
"""Settings of Ray with which a node that is gone counts as dead after 4 s, not 15."""


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Two nodes with a CPU each, and one without: three raylets on this machine."""
    load_ray()
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 2**20, "memory": 16 * 2**30}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "_system_config": SOON_DEAD,
            **small,
        },
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1, **small)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def warm_ray(ray_cluster: Any) -> Iterator[RayLauncher]:
    """One connection, with torch on its slots, for all tests that need real models."""
    with RayLauncher(address=ray_cluster.address) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def bare_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with a made environment `bare`: other processes find it by that."""
    cache = tmp_path_factory.mktemp("cache")
    python = Path(Environments(cache).made_interpreter("bare").path)
    python.parent.mkdir(parents=True)
    script = Path(bare_worker.__file__)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{script}" "$@"\n')
    python.chmod(0o755)
    stamp = environments.Stamp(recipe="")
    path = Environments(cache).folder("bare") / environments.STAMP_FILE
    path.write_bytes(msgspec.json.encode(stamp))
    return cache


@pytest.fixture(scope="session")
def bare_ray(ray_cluster: Any, bare_cache: Path) -> Iterator[Callable[..., RayLauncher]]:
    """Makes launchers for models without torch; one for all tests that give no options."""
    made: dict[str, RayLauncher] = {}

    def make(**options: Any) -> RayLauncher:
        given = {"environments": ("bare",), "cache": bare_cache, **options}
        new = RayLauncher(address=ray_cluster.address, **given)
        launcher = made.setdefault(repr(options), new)
        vars(launcher).pop("_nodes", None)  # it asks the cluster anew, in each test
        return launcher

    yield make
    for launcher in made.values():
        launcher.close()
