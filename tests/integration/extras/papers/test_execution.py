"""Training as a job of a real executor, and the metrics of all papers in Prometheus' own checker.

The job imports torch in a sandbox, which takes seconds; only a real service shows that what it
reports is understood.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from compilewatch.config import load_settings
from compilewatch.extras.executor.protocol import FailureCode, JobState, JobStatus
from compilewatch.extras.executor.sandbox.policy import MIB, SandboxLimits
from compilewatch.extras.executor.settings import ExecutorSettings
from compilewatch.extras.papers.execution import Trainer, job_ran
from compilewatch.extras.papers.publication import paper_groups
from compilewatch.extras.papers.records import CodeVersion, FindingClass
from compilewatch.extras.papers.store import PaperStore
from compilewatch.sinks.prometheus import registry
from tests import papers as world
from tests import services
from tests.confinement import need_sandbox
from tests.integration.extras.executor.conftest import TOKEN, Executor, _often
from tests.unit.extras.papers.test_publishing import PAPERS

__all__ = ["_often"]

LIMITS = SandboxLimits(deadline_seconds=200.0, memory_bytes=4 * 2**30, disk_bytes=256 * MIB)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    need_sandbox()
    service = Executor(tmp_path)
    service.start()
    yield service
    service.kill()


def training(tmp_path: Path, url: str, token: str = TOKEN) -> Trainer:
    settings = load_settings({"output_dir": str(tmp_path)})
    own = msgspec.structs.replace(settings.of(ExecutorSettings), endpoint=url, token=token)
    changed = settings.replaced(own)
    return Trainer(settings=changed, limits=LIMITS)


def generation() -> CodeVersion:
    source = (world.REPLIES / "gated-residual" / "code.0.py").read_text()
    return world.version(source, "gated-residual")


@pytest.mark.matrix
@pytest.mark.torch
@pytest.mark.timeout(400)
def test_a_version_is_trained_by_an_executor_and_its_job_runs_once(
    tmp_path: Path, executor: Executor
) -> None:
    folder = PaperStore(tmp_path).folder("gated-residual")
    first = training(tmp_path, executor.url).run(generation(), folder)
    assert first.findings == ()
    assert first.numbers["execution_success"] == 1.0
    assert first.numbers["training_loss"] > 0
    assert first.numbers["execution_time_seconds"] > 0
    again = training(tmp_path, executor.url).run(generation(), folder)
    assert again.numbers == first.numbers  # the same job, not a second one


def test_an_executor_that_rejects_the_token_means_not_run(
    tmp_path: Path, executor: Executor
) -> None:
    folder = PaperStore(tmp_path).folder("gated-residual")
    ran = training(tmp_path, executor.url, "wrong").run(generation(), folder)
    assert ran.not_run
    assert "\n" not in ran.not_run


@pytest.mark.parametrize(
    ("state", "failure", "kind"),
    [
        (JobStatus.FAILED, FailureCode.DEADLINE, FindingClass.TIMED_OUT),
        (JobStatus.FAILED, FailureCode.MEMORY, FindingClass.OOM),
        (JobStatus.FAILED, FailureCode.EXIT_STATUS, FindingClass.WRONG_IN_EAGER),
        (JobStatus.FAILED, FailureCode.SIGNAL, FindingClass.CRASHED),
        (JobStatus.LOST, FailureCode.INTERRUPTED, FindingClass.LOST),
        (JobStatus.CANCELLED, FailureCode.CANCELLED, FindingClass.LOST),
        (JobStatus.DONE, None, FindingClass.CRASHED),
    ],
)
def test_a_job_without_numbers_is_no_success(
    state: JobStatus, failure: FailureCode | None, kind: FindingClass
) -> None:
    job = JobState(key="k", state=state, submitted_at="", failure=failure)
    ran = job_ran(job, b"done\n", b"ValueError: no")
    assert [finding.kind for finding in ran.findings] == [kind]
    assert ran.numbers == {"execution_success": 0.0}


@pytest.mark.services
def test_the_metrics_of_papers_are_clean(tmp_path: Path) -> None:
    for samples in paper_groups(PAPERS).values():
        text = generate_latest(registry(samples))
        checked = subprocess.run(
            [services.program("promtool", package="prometheus"), "check", "metrics"],
            input=text,
            capture_output=True,
            check=False,
        )
        assert (checked.returncode, checked.stderr) == (0, b""), checked.stderr.decode()
