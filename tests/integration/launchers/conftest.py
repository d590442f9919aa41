from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import environments
from compilewatch.environments import Environments, Interpreter
from compilewatch.extras.cluster.cluster import load_ray
from compilewatch.extras.cluster.launcher import RayLauncher
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import ChaosBuild, ClassBuild, Deadlines, ModelSpec, Request, Target


def chaos_request(behaviour: str, **fields: Any) -> Request:
    model = ModelSpec(source="chaos", name=behaviour, build=ChaosBuild(behaviour=behaviour))
    given: dict[str, Any] = {"model": model, "target": Target(), "key": f"key-{behaviour}"}
    return Request(**{**given, **fields})


def bare_request(name: str, **fields: Any) -> Request:
    """For the environment of `bare_python`, whose models are behaviours of bare_worker."""
    target = Target(environment=str(fields.pop("environment", "bare")))
    model = ModelSpec(source="library", name=name, build=ClassBuild(class_name=name))
    given: dict[str, Any] = {"model": model, "target": target, "key": f"key-{name}"}
    return Request(**{**given, **fields})


def hurried(phase: str, seconds: float) -> Deadlines:
    """Long deadlines but for one phase, so that a slow machine fails no test."""
    return Deadlines(**{f"{phase}_seconds": seconds})


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter for the environment `bare`: see bare_worker."""
    script = Path(__file__).with_name("bare_worker.py")
    wrapper = tmp_path / "bare-python"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{script}" "$@"\n')
    wrapper.chmod(0o755)
    interpreter = Interpreter(executable=str(wrapper))
    monkeypatch.setitem(environments.INTERPRETERS, "bare", interpreter)
    return wrapper


@pytest.fixture
def bare_launcher(bare_python: Path) -> Iterator[Callable[..., LocalLauncher]]:
    made: list[LocalLauncher] = []

    def make(jobs: int = 2, **options: Any) -> LocalLauncher:
        made.append(LocalLauncher(jobs, ("bare",), **options))
        return made[-1]

    yield make
    for launcher in made:
        launcher.close()


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
    script = Path(__file__).with_name("bare_worker.py")
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{script}" "$@"\n')
    python.chmod(0o755)
    stamp = environments.Stamp(name="bare", recipe="", created="", python="")
    path = Environments(cache).folder("bare") / environments.STAMP_FILE
    path.write_bytes(msgspec.json.encode(stamp))
    return cache


@pytest.fixture(scope="session")
def bare_ray(ray_cluster: Any, bare_cache: Path) -> Iterator[Callable[..., RayLauncher]]:
    """Makes launchers for models without torch; one for all tests that give no options."""
    made: dict[str, RayLauncher] = {}

    def make(**options: Any) -> RayLauncher:
        given = {"environments": ("bare",), "cache": bare_cache, **options}
        return made.setdefault(repr(options), RayLauncher(address=ray_cluster.address, **given))

    yield make
    for launcher in made.values():
        launcher.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder
