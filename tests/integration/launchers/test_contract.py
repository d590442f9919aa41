"""What every launcher in the table promises."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compilewatch.launchers import LAUNCHERS, Launcher
from compilewatch.records import Status
from tests.integration.launchers.conftest import bare_request, chaos_request

pytestmark = pytest.mark.torch

WARM = {"local": "warm_launcher", "ray": "warm_ray"}
"""Fixtures of the launchers, whose servers have torch, for all tests that can share one."""


def load(name: str) -> type[Launcher]:
    module, _, attribute = LAUNCHERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.fixture(params=sorted(LAUNCHERS))
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return request.getfixturevalue(WARM[request.param])


@pytest.fixture(params=sorted(LAUNCHERS))
def launcher_of_its_own(
    request: pytest.FixtureRequest, bare_launcher: Callable[..., Launcher]
) -> Iterator[tuple[Launcher, str]]:
    """With the environment that it has; for tests that end a server."""
    if request.param == "local":
        yield bare_launcher(), "bare"
    else:
        yield request.getfixturevalue("bare_ray")(), "bare"


def test_is_named_as_in_the_table() -> None:
    assert {name: load(name).name for name in LAUNCHERS} == {name: name for name in LAUNCHERS}


def test_each_request_has_one_result_with_the_request_in_it(
    launcher: Launcher, scratch: Path
) -> None:
    asked = [chaos_request("ok", key=f"key-{number}") for number in range(5)]
    answers = list(launcher.run(iter(asked), scratch))
    answered = sorted((a.result.request for a in answers), key=lambda request: request.key)
    assert answered == asked
    assert {a.result.status for a in answers} == {Status.PASS}
    (environment,) = launcher.environments()
    assert launcher.environments() == (environment,)
    assert environment.name == "default"
    assert {a.result.environment_digest for a in answers} == {environment.digest}


def test_says_how_many_run_at_a_time(launcher: Launcher, scratch: Path) -> None:
    """What the fixtures ask for: 2 jobs, a cluster with 2 CPUs."""
    assert launcher.jobs == 2
    assert list(launcher.run([], scratch)) == []


def test_artifacts_are_folders_below_scratch_and_all_that_stays(
    launcher: Launcher, scratch: Path
) -> None:
    answers = list(launcher.run([chaos_request("ok"), chaos_request("grandchildren")], scratch))
    kept = {a.artifacts for a in answers if a.artifacts is not None}
    assert set(scratch.iterdir()) == kept
    assert all(any(folder.iterdir()) for folder in kept)


def test_can_be_left_early_and_used_again(
    launcher_of_its_own: tuple[Launcher, str], scratch: Path
) -> None:
    launcher, environment = launcher_of_its_own
    asked = [bare_request("ok", key=f"key-{n}", environment=environment) for n in range(5)]
    answers: Any = launcher.run(asked, scratch)  # a generator, which can be closed
    next(answers)
    answers.close()
    assert len(list(launcher.run(asked, scratch))) == 5
