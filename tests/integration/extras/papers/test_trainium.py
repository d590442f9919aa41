"""The Trainium instance of a run of papers: EC2 as moto serves it, and a real executor.

Started with the first training and stopped after the last, never under a job of anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.protocol import JobRequest
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.executor.trainium import OnDemand, running
from compilewatch.extras.papers import execution
from compilewatch.extras.papers.execution import SCRIPT, Trainer
from compilewatch.extras.papers.records import CodeVersion, PaperSummary, PipelineStage
from tests import papers
from tests.integration.extras.executor.conftest import TOKEN, Executor, _confining, _often
from tests.integration.extras.executor.trainium.conftest import (
    World,
    client,
    moto_endpoint,
    sshd,
    world,
)

__all__ = ["_confining", "_often", "client", "moto_endpoint", "sshd", "world"]

TRAINED = """print('METRICS: {"training_loss": 0.5}')"""
SLOW = JobRequest(
    files={"main.py": "import time; time.sleep(60)"},
    limits=SandboxLimits(deadline_seconds=60.0, memory_bytes=2**29),
)


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    def files(generation: CodeVersion) -> dict[str, str]:
        return {SCRIPT: TRAINED + f"  # {generation.paper}"}

    monkeypatch.setattr(execution, "training_files", files)
    service = Executor(tmp_path, "--jobs", "2")
    service.start()
    yield service
    service.end()


def run(
    tmp_path: Path, world: World, executor: Executor, say: list[str]
) -> tuple[PaperSummary, ...]:
    """Two papers at a time, each trained by the executor of the instance."""
    settings = world.settings()
    own = msgspec.structs.replace(settings.of(ExecutorSettings), endpoint=executor.url, token=TOKEN)
    changed = settings.replaced(own)
    folder = tmp_path / "papers"
    papers.write_papers(folder, 2)
    found = papers.papers_of(folder, tmp_path, 2)
    limits = SandboxLimits(deadline_seconds=60.0, memory_bytes=2**29)
    with ExecutorClient(executor.url, TOKEN) as mine, papers.served() as (_, provider):

        def make() -> object:
            return running(world.operation(), mine, say.append, poll_seconds=0.1)

        with OnDemand(make) as instance:  # type: ignore[arg-type]
            training = Trainer(settings=changed, limits=limits, instance=instance)
            summaries = papers.pipeline(tmp_path, provider, folder, found, trainer=training)
            return summaries.run(found, 2)


def test_it_runs_for_the_trainings_and_never_for_nothing(
    tmp_path: Path, world: World, executor: Executor
) -> None:
    """Takes seconds: a real service, so that a job is drained and not only said to be."""
    summaries = run(tmp_path, world, executor, [])
    assert [one.state for one in summaries] == ["passed"] * 2
    assert [one.stages[-1].stage for one in summaries] == [PipelineStage.EXECUTE] * 2
    assert world.state() == "stopped"
    assert sum("is starting" in line for line in world.said) == 1
    # The same papers again: nothing is to be trained, so nothing is started.
    world.said.clear()
    assert run(tmp_path, world, executor, []) == summaries
    assert (world.state(), world.said) == ("stopped", [])


def test_it_is_not_stopped_under_the_job_of_another(
    tmp_path: Path, world: World, executor: Executor
) -> None:
    """Takes seconds: the job of the other must run in a real service."""
    other, lines, states = executor.client(), list[str](), list[str]()
    other.submit("of-another", SLOW)

    def end_it() -> None:
        while not any("later, because" in line for line in lines):
            time.sleep(0.02)
        states.append(world.state())
        other.cancel("of-another")

    watcher = threading.Thread(target=end_it)
    watcher.start()
    summaries = run(tmp_path, world, executor, lines)
    watcher.join()
    assert [one.state for one in summaries] == ["passed"] * 2
    assert states == ["running"]
    assert world.state() == "stopped"


def test_an_instance_that_cannot_be_started_is_asked_for_once(
    tmp_path: Path, world: World, executor: Executor
) -> None:
    world.put("terminated")
    summaries = run(tmp_path, world, executor, [])
    assert [one.state for one in summaries] == ["incomplete"] * 2
    for one in summaries:
        assert "terminated" in one.stages[-1].detail
        assert "\n" not in one.stages[-1].detail
