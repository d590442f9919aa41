import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compilewatch import environments
from compilewatch.environments import Interpreter
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import ClassBuild, Deadlines, ModelSpec, Request, Target
from tests import factories


def chaos_request(behaviour: str, **fields: Any) -> Request:
    given: dict[str, Any] = {"target": Target(), "key": f"key-{behaviour}"}
    return Request(model=factories.chaos(behaviour), **{**given, **fields})


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


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder
