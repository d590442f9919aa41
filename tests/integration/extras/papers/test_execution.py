"""Training by a real executor, and the Trainium instance of a run: EC2 as moto serves it.

Takes seconds: only a real service shows that what it reports is understood, and that the instance
is started with the first training and stopped after the last, never under a job of anybody.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.config import Settings, load_settings
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.executor.trainium import on_demand, running
from compilewatch.extras.papers import execution
from compilewatch.extras.papers.execution import SCRIPT, Trainer
from compilewatch.extras.papers.records import PaperSummary, PipelineStage, StageResult
from compilewatch.extras.papers.store import PaperStore
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

SHORT = SandboxLimits(deadline_seconds=60.0, memory_bytes=2**29)


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    service = Executor(tmp_path_factory.mktemp("executor"), "--jobs", "2")
    service.start()
    yield service
    service.end()


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings that import no torch."""
    trained = """print('METRICS: {"training_loss": 0.5}')"""
    monkeypatch.setattr(
        execution, "training_files", lambda generation: {SCRIPT: f"{trained}  # {generation.paper}"}
    )


def trainer(settings: Settings, executor: Executor, token: str = TOKEN, **fields: Any) -> Trainer:
    own = settings.executor
    own = msgspec.structs.replace(own, endpoint=executor.url, token=token)
    settings = msgspec.structs.replace(settings, executor=own)
    limits = fields.pop("limits", SHORT)
    return Trainer(settings, limits, **fields)


def trained(tmp_path: Path, executor: Executor, token: str = TOKEN) -> StageResult:
    """What the training of a shipped version showed."""
    source = (papers.REPLIES / "gated-residual" / "code.0.py").read_text()
    settings = load_settings({"output_dir": str(tmp_path)})
    limits = SandboxLimits(deadline_seconds=200.0, memory_bytes=4 * 2**30, disk_bytes=256 * MIB)
    return trainer(settings, executor, token, limits=limits).run(
        papers.version(source, "gated-residual"), PaperStore(tmp_path).folder("gated-residual")
    )


@pytest.mark.matrix
@pytest.mark.torch
@pytest.mark.timeout(400)
def test_a_version_is_trained_by_an_executor_and_its_job_runs_once(
    tmp_path: Path, executor: Executor
) -> None:
    first = trained(tmp_path, executor)
    assert first.findings == ()
    assert first.numbers["execution_success"] == 1.0
    assert first.numbers["training_loss"] > 0
    assert first.numbers["execution_time_seconds"] > 0
    assert trained(tmp_path, executor).numbers == first.numbers  # the same job, not a second one


def test_an_executor_that_rejects_the_token_means_not_run(
    tmp_path: Path, executor: Executor
) -> None:
    ran = trained(tmp_path, executor, "wrong")
    assert ran.not_run
    assert "\n" not in ran.not_run


def run(tmp_path: Path, world: World, executor: Executor) -> tuple[PaperSummary, ...]:
    """Two papers at a time, each trained by the executor of the instance."""
    some = papers.some_papers(tmp_path, 2)
    with ExecutorClient(executor.url, TOKEN) as mine, papers.served() as (_, provider):

        def make() -> Any:
            return running(world.operation(), mine, world.said.append, poll_seconds=0.1)

        with on_demand(make) as start:
            training = trainer(world.settings(), executor, start_instance=start)
            return papers.pipeline(tmp_path, provider, some, trainer=training).run(some, 2)


@pytest.mark.usefixtures("_quick")
def test_the_instance_runs_for_the_trainings_and_never_for_nothing(
    tmp_path: Path, world: World, executor: Executor
) -> None:
    summaries = run(tmp_path, world, executor)
    assert [one.state for one in summaries] == ["passed"] * 2
    assert [one.stages[-1].stage for one in summaries] == [PipelineStage.EXECUTE] * 2
    assert world.state() == "stopped"
    assert sum("is starting" in line for line in world.said) == 1
    # The same papers again: nothing is to be trained, so nothing is started.
    world.said.clear()
    assert run(tmp_path, world, executor) == summaries
    assert (world.state(), world.said) == ("stopped", [])
    with ExecutorClient(executor.url, TOKEN) as mine:
        assert mine.undrain(), "it takes no job while the instance stops"


@pytest.mark.usefixtures("_quick")
def test_an_instance_that_cannot_be_started_is_asked_for_once(
    tmp_path: Path, world: World, executor: Executor
) -> None:
    world.put("terminated")
    summaries = run(tmp_path, world, executor)
    assert [one.state for one in summaries] == ["incomplete"] * 2
    for one in summaries:
        assert "terminated" in one.stages[-1].detail
        assert "\n" not in one.stages[-1].detail
