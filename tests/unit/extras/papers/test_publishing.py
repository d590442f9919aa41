"""Metrics of many papers: few series, within the limits of AWS, and no value spoils another."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.extras.executor.protocol import JobState, JobStatus
from compilewatch.extras.executor.sandbox.policy import (
    SandboxEnding,
    SandboxLimits,
    SandboxOutcome,
    SandboxResult,
)
from compilewatch.extras.papers import publication
from compilewatch.extras.papers import records as kinds
from compilewatch.extras.papers.execution import run_eager, trained, trained_numbers
from compilewatch.extras.papers.pipeline import PaperWork
from compilewatch.extras.papers.publication import execution_data, paper_groups, render
from compilewatch.extras.papers.records import (
    FindingClass,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import PaperStore, summarise_paper
from tests import papers as world
from tests.paper_summaries import FULL, summary

PAPERS = [summary(number, FULL) for number in range(500)]


def test_many_papers_are_few_metrics_within_the_limits_of_cloudwatch() -> None:
    data, keys = execution_data(PAPERS, "trn1.2xlarge")
    assert len(keys) == 500
    assert len({(datum["MetricName"], str(datum["Dimensions"])) for datum in data}) <= 40
    assert len(data) == 500 * len(FULL)
    assert "paper" not in str([datum["Dimensions"] for datum in data])
    request, _ = execution_data(PAPERS[: publication.EXECUTIONS], "x" * 100)
    assert len(request) <= 1000
    assert sum(len(msgspec.json.encode(datum)) + 200 for datum in request) < 800_000


@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, math.nan, math.inf])
def test_a_value_that_cloudwatch_would_reject_loses_itself_only(value: float) -> None:
    data, _ = execution_data([summary(1, FULL | {"training_loss": value, "test_accuracy": 0})], "x")
    assert {datum["MetricName"] for datum in data} == FULL.keys() - {"training_loss"}


def test_prepared_replies_never_count_as_those_of_a_model() -> None:
    groups = paper_groups(PAPERS[:4])
    for replies in ("model", "scripted"):
        states = [s for s in groups[replies] if s[0] == "compilewatch_papers"]
        assert states == [("compilewatch_papers", (replies, "passed"), 2.0)]


def test_not_run_is_not_passed() -> None:
    one = summarise_paper(PAPERS[1].stages[:6], ())
    assert (one.state, one.stages[-1].outcome) == ("incomplete", StageOutcome.NOT_RUN)


def finding(kind: FindingClass, stage: PipelineStage, evidence: str) -> kinds.PaperFinding:
    return kinds.PaperFinding(kind=kind, stage=stage, evidence=evidence, line=18)


def test_an_earlier_version_does_not_count_for_the_last_one() -> None:
    wrong = finding(FindingClass.DISALLOWED, PipelineStage.STATIC, "import os")
    of_newer: dict[str, Any] = {"paper": "paper 1", "generation": "newer", "key": "newer"}
    newer = StageResult(stage=PipelineStage.GENERATE, numbers={"version": 1.0}, **of_newer)
    static = StageResult(
        stage=PipelineStage.STATIC, outcome=StageOutcome.FAILED, findings=(wrong,), **of_newer
    )
    one = summarise_paper([*PAPERS[1].stages, newer, static], ())
    assert (one.state, one.repairs) == ("failed", 1)
    assert one.findings == (wrong,)
    sweep = one.stages[list(PipelineStage).index(PipelineStage.SWEEP)]
    assert sweep.outcome is StageOutcome.NOT_RUN


def test_the_page_shows_each_paper_what_was_repaired_and_escapes_what_models_wrote() -> None:
    wrong = finding(FindingClass.UNFAITHFUL, PipelineStage.FAITHFUL, "<script>alert(1)</script>")
    failed = {"outcome": StageOutcome.FAILED, "findings": (wrong,)}
    stages = [
        msgspec.structs.replace(s, **(failed if s.stage is wrong.stage else {}))
        for s in PAPERS[1].stages
    ]
    one = summary(1, {"initial_training_loss": 2.5, "final_training_loss": 1.25})
    broken = finding(FindingClass.GRAPH_BREAK, PipelineStage.SWEEP, "dynamo: <item()>")
    earlier = StageResult(
        paper=one.paper, stage=broken.stage, generation="0" * 64, findings=(broken, broken)
    )
    repaired = summarise_paper([earlier, *one.stages], ())
    assert (repaired.repaired, repaired.state) == ((broken,), "passed")
    shown = (PAPERS[0], summarise_paper(stages, ()), repaired)
    text = dict(render(shown, ()))["index.html"].decode()
    assert "not the paper&#39;s contribution" in text
    assert "<script>" not in text
    assert 'id="paper 0"' in text
    assert text.count("sweep: graph break: dynamo: &lt;item()&gt; (line 18)") == 1
    assert text.count("training loss 2.5 at first, 1.25 at last") == 1
    assert text.count("sent back for a repair") == 1


# --- what hostile code returns from the sandbox is data ---

PLAN = kinds.PaperPlan(
    contribution="",
    claims=(kinds.Claim(id="C1", statement="", operations=("exp",), formula="exp(x)"),),
)
MADE = world.version()


class Returning(world.FakeRunner):
    """A sandbox in which the code left these bytes as a result."""

    def __init__(self, data: bytes, **outcome: Any) -> None:
        super().__init__()
        fields: dict[str, Any] = {"ending": SandboxEnding.EXITED, "exit_code": 0} | outcome
        self.result = SandboxResult(files={"result.json": data}, **fields)

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        return self.result


@pytest.mark.parametrize(
    "data",
    [
        b'{"phase": "done", "numbers": {"parameters": ' + b"9" * 400 + b"}}",
        b'{"phase": "done", "numbers": {"loss": NaN}}',
        b'{"phase": "done", "numbers": {"loss": 1e999}}',
        b'{"phase": "eager", "error": {"message": "x", "line": ' + b"9" * 50 + b"}}",
        b'{"phase": "done", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
        b"[]",
    ],
    ids=["long int", "NaN", "overflow", "long line", "deep", "binary", "list"],
)
def test_a_result_that_cannot_be_one_is_a_crash(data: bytes) -> None:
    eager, formulas = run_eager(Returning(data), MADE, PLAN)
    assert {finding.kind for finding in eager.findings} == {FindingClass.CRASHED}
    assert formulas.not_run


def test_escape_sequences_do_not_reach_the_terminal_and_code_that_hangs_times_out() -> None:
    data = b'{"phase": "eager", "error": {"message": "\\u001b[2J\\u009b31m\\nforged line"}}'
    (finding,) = run_eager(Returning(data), MADE, PLAN)[0].findings
    assert finding.evidence.isprintable()
    hanging = Returning(data, ending=SandboxEnding.DEADLINE)
    (finding,) = run_eager(hanging, MADE, PLAN)[0].findings
    assert (finding.kind, finding.evidence) == (FindingClass.TIMED_OUT, "deadline in eager")


def test_a_comparison_that_fails_confirms_nothing_though_code_left_its_verdict() -> None:
    forged = {"checks.json": b'[{"claim": "C1", "ok": true}]', "out/checks.json": b"[]"}
    seen: list[set[str]] = []

    class Forging(world.FakeRunner):
        def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
            seen.append(set(files))
            result = super().run(files, limits)
            status = 0 if len(seen) == 1 else 1
            return msgspec.structs.replace(result, exit_code=status, files=result.files | forged)

    eager, formulas = run_eager(Forging(), MADE, PLAN)
    assert eager.findings == ()
    assert [finding.kind for finding in formulas.findings] == [FindingClass.UNFAITHFUL]
    assert "out/checks.json" not in seen[1]


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
        "step": 1.0,
        "epoch": 2.0,
        "training_loss": 1.0,
        "test_accuracy": 61.5,
        "initial_training_loss": 2.0,
        "final_training_loss": 1.0,
    }


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ({"ending": SandboxEnding.DEADLINE}, FindingClass.TIMED_OUT),
        ({"ending": SandboxEnding.MEMORY}, FindingClass.OOM),
        ({"ending": SandboxEnding.NOT_STARTED}, FindingClass.LOST),
        ({"ending": SandboxEnding.EXITED, "exit_code": 1}, FindingClass.WRONG_IN_EAGER),
        ({"ending": SandboxEnding.EXITED, "signal": 6}, FindingClass.CRASHED),
        ({"ending": SandboxEnding.EXITED, "exit_code": 0}, FindingClass.CRASHED),
    ],
)
def test_a_training_without_numbers_is_no_success(
    outcome: dict[str, Any], kind: FindingClass
) -> None:
    ran = trained(SandboxOutcome(**outcome), b"done\n", b"ValueError: no")
    assert [finding.kind for finding in ran.findings] == [kind]
    assert ran.numbers == {"execution_success": 0.0, "execution_time_seconds": 0.0}


def test_a_job_that_is_lost_has_no_time() -> None:
    job = JobState(key="k", state=JobStatus.LOST, submitted_at="", message="the service ended")
    ran = trained(None, b"done\n", b"", job)
    assert [finding.text for finding in ran.findings] == ["lost: lost: the service ended"]
    assert ran.numbers == {"execution_success": 0.0}


def test_a_number_that_is_none_spoils_neither_the_journal_nor_other_numbers(tmp_path: Path) -> None:
    (paper,) = world.some_papers(tmp_path, 1)
    folder = PaperStore(tmp_path).folder(paper.id)
    work = PaperWork(world.pipeline(tmp_path, None, (paper,)), paper, folder)
    numbers = {"training_loss": math.nan, "peak_memory_mb": math.inf, "x": 1.0}
    work.add("key", StageResult(stage=PipelineStage.EXECUTE, numbers=numbers))
    (line,) = folder.journal()
    assert (line.outcome, line.numbers) == (kinds.StageOutcome.PASSED, {"x": 1.0})
