"""What hostile code returns from the sandbox is data: any bytes are a result, and none an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.extras.executor.protocol import FailureCode, JobState, JobStatus
from compilewatch.extras.executor.sandbox.policy import SandboxEnding, SandboxLimits, SandboxResult
from compilewatch.extras.papers.execution import job_ran, run_eager, trained, trained_numbers
from compilewatch.extras.papers.pipeline import PaperWork
from compilewatch.extras.papers.records import (
    Claim,
    FindingClass,
    PaperPlan,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import PaperStore
from tests import papers as world

PLAN = PaperPlan(
    contribution="", claims=(Claim(id="C1", statement="", operations=("exp",), formula="exp(x)"),)
)
MADE = world.version()


class Returning(world.FakeRunner):
    """A sandbox in which the code left these bytes as its result."""

    def __init__(self, data: bytes, ending: SandboxEnding = SandboxEnding.EXITED) -> None:
        super().__init__()
        self.result = SandboxResult(ending=ending, exit_code=0, files={"result.json": data})

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        return self.result


@pytest.mark.parametrize(
    "data",
    [
        b'{"phase": "done", "parameters": ' + b"9" * 400 + b"}",
        b'{"phase": "done", "loss": NaN}',
        b'{"phase": "done", "loss": 1e999}',
        b'{"phase": "eager", "error": {"message": "x", "line": ' + b"9" * 50 + b"}}",
        b'{"phase": "done", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"phase": "done"',
        b"\xff\xfe",
        b"",
        b"[]",
    ],
    ids=["long int", "NaN", "overflow", "long line", "deep", "cut", "binary", "empty", "list"],
)
def test_a_result_that_cannot_be_one_is_a_crash(data: bytes) -> None:
    eager, formulas = run_eager(Returning(data), MADE, PLAN)
    assert {finding.kind for finding in eager.findings} == {FindingClass.CRASHED}
    assert formulas.not_run


def test_escape_sequences_and_line_ends_do_not_reach_the_terminal() -> None:
    data = b'{"phase": "eager", "error": {"message": "\\u001b[2J\\u009b31m\\nforged line"}}'
    (finding,) = run_eager(Returning(data), MADE, PLAN)[0].findings
    assert finding.evidence.isprintable()


def test_code_that_hangs_times_out_in_its_phase() -> None:
    hanging = Returning(b'{"phase": "eager"}', SandboxEnding.DEADLINE)
    (finding,) = run_eager(hanging, MADE, PLAN)[0].findings
    assert (finding.kind, finding.evidence) == (FindingClass.TIMED_OUT, "deadline in eager")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_result(data: bytes) -> None:
    eager, _ = run_eager(Returning(data), MADE, PLAN)
    assert eager.findings


STDOUT = b"""Epoch 1/2, Loss: 2.5
METRICS: {"step": 1, "training_loss": 2.0, "x": true, "execution_success": 7}
METRICS: {"epoch": 2, "training_loss": NaN}
METRICS: {"epoch": 2, "training_loss": 1.0, "test_accuracy": 61.5}
METRICS: {"estimated_cost_usd": -5, "peak_memory_mb": 1, "execution_time_seconds": 0.1}
"""


def test_what_code_prints_cannot_replace_what_was_measured() -> None:
    assert trained_numbers(STDOUT) == {
        "training_loss": 1.0,
        "test_accuracy": 61.5,
        "initial_training_loss": 2.0,
        "final_training_loss": 1.0,
    }


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
    local = trained(SandboxResult(ending=SandboxEnding.EXITED, exit_code=0, stdout=b"done\n"))
    assert [finding.kind for finding in local.findings] == [FindingClass.CRASHED]
    assert [finding.kind for finding in ran.findings] == [kind]
    assert ran.numbers == {"execution_success": 0.0}


def test_a_number_that_is_none_spoils_neither_the_journal_nor_other_numbers(tmp_path: Path) -> None:
    (paper,) = world.some_papers(tmp_path, 1)
    folder = PaperStore(tmp_path).folder(paper.id)
    work = PaperWork(world.pipeline(tmp_path, None, (paper,)), paper, folder)
    numbers = {"training_loss": math.nan, "peak_memory_mb": math.inf, "x": 1.0}
    work.add("key", StageResult(stage=PipelineStage.EXECUTE, numbers=numbers))
    (line,) = folder.journal()
    assert (line.outcome, line.numbers) == (StageOutcome.PASSED, {"x": 1.0})
