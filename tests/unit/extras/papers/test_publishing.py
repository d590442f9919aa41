"""Metrics of many papers: few series, within the limits of AWS, and no value spoils another."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from compilewatch.extras.papers import publication
from compilewatch.extras.papers.publication import execution_data, paper_groups, render
from compilewatch.extras.papers.records import (
    FindingClass,
    PaperFinding,
    PaperSummary,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import summarise_paper
from tests.paper_summaries import FULL, summary

PAPERS = [summary(number, FULL) for number in range(500)]


def test_many_papers_are_few_metrics_within_the_limits_of_cloudwatch() -> None:
    data, keys = execution_data(PAPERS, "trn1.2xlarge")
    assert len(keys) == 500
    assert len({(datum["MetricName"], str(datum["Dimensions"])) for datum in data}) <= 40
    assert sum(len(datum["Values"]) for datum in data) == 500 * len(FULL)
    assert "paper" not in str([datum["Dimensions"] for datum in data])
    # One request, whose executions are minutes apart, or of one minute.
    apart, _ = execution_data(PAPERS[: publication.EXECUTIONS], "x" * 100)
    assert len(apart) <= 1000
    assert sum(len(msgspec.json.encode(datum)) + 200 for datum in apart) < 800_000
    alike, _ = execution_data([PAPERS[1]] * publication.EXECUTIONS, "x")
    assert max(len(datum["Values"]) for datum in alike) <= 150


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


def finding(kind: FindingClass, stage: PipelineStage, evidence: str) -> PaperFinding:
    return PaperFinding(kind=kind, stage=stage, evidence=evidence, line=18)


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


def page(*summaries: PaperSummary) -> str:
    return dict(render(summaries, ()))["index.html"].decode()


def test_the_page_shows_each_paper_and_escapes_what_models_wrote() -> None:
    wrong = finding(FindingClass.UNFAITHFUL, PipelineStage.FAITHFUL, "<script>alert(1)</script>")
    failed = {"outcome": StageOutcome.FAILED, "findings": (wrong,)}
    stages = [
        msgspec.structs.replace(s, **(failed if s.stage is wrong.stage else {}))
        for s in PAPERS[1].stages
    ]
    text = page(PAPERS[0], summarise_paper(stages, ()))
    assert "not the paper&#39;s contribution" in text
    assert "<script>" not in text
    assert 'id="paper 0"' in text


def test_the_page_says_what_was_repaired_and_how_the_training_went() -> None:
    one = summary(1, {"initial_training_loss": 2.5, "final_training_loss": 1.25})
    broken = finding(FindingClass.GRAPH_BREAK, PipelineStage.SWEEP, "dynamo: <item()>")
    of_earlier: dict[str, Any] = {"paper": one.paper, "generation": "0" * 64}
    earlier = StageResult(
        stage=PipelineStage.SWEEP,
        outcome=StageOutcome.FAILED,
        findings=(broken, broken),
        **of_earlier,
    )
    repaired = summarise_paper([earlier, *one.stages], ())
    assert (repaired.repaired, repaired.state) == ((broken,), "passed")
    text = page(repaired)
    assert "sweep: graph break: dynamo: &lt;item()&gt; (line 18)" in text
    assert "training loss 2.5 at first, 1.25 at last" in text
    assert "sent back for a repair" not in page(one)
