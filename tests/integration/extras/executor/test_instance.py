"""The instance of an executor is stopped by who started it, and never under anybody's job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compilewatch.errors import ExecutorError, TrainiumError
from compilewatch.extras.executor.protocol import JobRequest
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from compilewatch.extras.executor.trainium import InstanceReport, Operation, hold, running
from tests.integration.extras.executor.conftest import Executor

SLOW = JobRequest(
    files={"main.py": "import time; time.sleep(60)"}, limits=SandboxLimits(deadline_seconds=60.0)
)


class Instance(Operation):
    """An instance whose starts and stops are recorded."""

    def __init__(self, *, ours: bool = True, fails: bool = False) -> None:
        self.ours, self.fails = ours, fails
        self.calls: list[str] = []

    def up(self) -> InstanceReport:
        self.calls.append("up")
        return InstanceReport(action="started" if self.ours else "joined", started_by_run=self.ours)

    def down(self, *, force: bool = False, wait: bool = True) -> InstanceReport:
        self.calls.append("down")
        if self.fails:
            raise TrainiumError("not today")
        return InstanceReport(action="stopped" if self.ours else "left")


@pytest.fixture
def drained(executor: Executor) -> Iterator[Callable[[], bool]]:
    """Whether the service takes no jobs; it takes them again after the test."""
    yield lambda: bool(executor.health()["draining"])
    executor.client().undrain()


@pytest.mark.parametrize("ours", [True, False])
def test_what_this_started_is_stopped_after_the_work_and_takes_no_job_meanwhile(
    executor: Executor, drained: Callable[[], bool], ours: bool
) -> None:
    instance = Instance(ours=ours)
    with running(instance, executor.client(), print):
        assert instance.calls == ["up"]
    assert instance.calls == ["up", "down"]
    assert drained() is ours


def test_after_a_long_wait_it_is_left_to_its_own_timer(
    executor: Executor, drained: Callable[[], bool]
) -> None:
    client, lines = executor.client(), list[str]()
    client.submit("endless", SLOW)
    instance = Instance()
    with running(instance, client, lines.append, wait_seconds=0.0, poll_seconds=0.1):
        pass
    assert instance.calls == ["up"]
    assert "keeps running" in lines[-1]
    client.cancel("endless")
    client.wait("endless")
    assert not drained()


def test_a_service_takes_jobs_again_if_its_instance_cannot_be_stopped(
    executor: Executor, drained: Callable[[], bool]
) -> None:
    failing = running(Instance(fails=True), executor.client(), print)
    with pytest.raises(TrainiumError), failing:
        pass
    assert not drained()


def test_a_service_that_cannot_be_reached_is_not_idle(own: Executor) -> None:
    assert "fails" in (hold(own.client(retry_seconds=0.2)) or "")
    with pytest.raises(ExecutorError):
        hold(own.client().__class__("ftp://nothing"))
