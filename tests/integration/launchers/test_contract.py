"""What every launcher in the table promises."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch.launchers import LAUNCHERS, Launcher
from compilewatch.records import Status
from tests.integration.launchers.conftest import bare_request, chaos_request

pytestmark = pytest.mark.torch

WARM = {"local": "warm_launcher", "ray": "warm_ray"}
"""Fixtures of the launchers, whose servers have torch, for all tests that can share one."""


@pytest.fixture(params=sorted(LAUNCHERS))
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return request.getfixturevalue(WARM[request.param])


@pytest.fixture(params=sorted(LAUNCHERS))
def bare(request: pytest.FixtureRequest, bare_launcher: Callable[..., Launcher]) -> Launcher:
    """One of its own, with the environment `bare`, for tests that end a server."""
    local = request.param == "local"
    return bare_launcher() if local else request.getfixturevalue("bare_ray")()


def test_each_request_has_one_result_with_the_request_in_it(
    launcher: Launcher, scratch: Path
) -> None:
    assert launcher.name in LAUNCHERS
    assert launcher.jobs == 2  # what the fixtures ask for: 2 jobs, a cluster with 2 CPUs
    assert list(launcher.run([], scratch)) == []
    asked = [chaos_request("ok", key=f"key-{number}") for number in range(5)]
    asked.append(chaos_request("grandchildren", key="key-5"))
    answers = list(launcher.run(iter(asked), scratch))
    answered = sorted((a.result.request for a in answers), key=lambda request: request.key)
    assert answered == asked
    assert {a.result.status for a in answers} == {Status.PASS}
    (environment,) = launcher.environments()
    assert launcher.environments() == (environment,)
    assert environment.name == "default"
    assert {a.result.environment_digest for a in answers} == {environment.digest}
    # Artifacts are folders below scratch, and all that stays.
    kept = {a.artifacts for a in answers if a.artifacts is not None}
    assert set(scratch.iterdir()) == kept
    assert all(any(folder.iterdir()) for folder in kept)


def test_can_be_left_early_and_used_again(bare: Launcher, scratch: Path) -> None:
    asked = [bare_request("ok", key=f"key-{n}") for n in range(5)]
    answers: Any = bare.run(asked, scratch)  # a generator, which can be closed
    next(answers)
    answers.close()
    assert len(list(bare.run(asked, scratch))) == 5
