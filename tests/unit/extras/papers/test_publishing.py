"""Metrics of many papers: few series, within the limits of AWS, and no value spoils another."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from compilewatch.config import Settings
from compilewatch.extras.papers import publication
from compilewatch.extras.papers.execution import trained_numbers
from compilewatch.extras.papers.publication import execution_data, paper_groups, render
from compilewatch.extras.papers.records import (
    FindingClass,
    PaperFinding,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import PaperStore, summarise_paper
from tests.paper_summaries import FULL, summary

PAPERS = [summary(number, FULL) for number in range(500)]


def test_500_papers_are_few_metrics_in_cloudwatch() -> None:
    data, keys = execution_data(PAPERS, "trn1.2xlarge")
    assert len(keys) == 500
    assert len({(datum.name, datum.dimensions) for datum in data}) <= 40
    assert sum(len(datum.values) for datum in data) == 500 * len(FULL)
    assert max(len(datum.values) for datum in data) <= 150
    assert not [d for datum in data for d in datum.dimensions if "paper" in d[1]]


def test_a_value_that_is_no_number_is_lost_alone() -> None:
    data, _ = execution_data(
        [summary(1, FULL | {"training_loss": math.nan, "peak_memory_mb": math.inf})], "x"
    )
    assert {datum.name for datum in data} == FULL.keys() - {"training_loss", "peak_memory_mb"}


def test_a_request_is_within_the_limits_of_cloudwatch() -> None:
    apart = [summary(number, FULL) for number in range(publication.EXECUTIONS)]
    data, _ = execution_data(apart, "x" * 100)
    assert len(data) <= 1000
    assert sum(len(msgspec.json.encode(datum)) + 200 for datum in data) < 800_000
    alike = execution_data([PAPERS[1]] * publication.EXECUTIONS, "x")[0]
    assert max(len(datum.values) for datum in alike) <= 150


def test_publishing_again_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def put(_: object, data: list[object]) -> None:
        sent.append(len(data))

    monkeypatch.setattr(publication, "put", put)
    store = PaperStore(tmp_path)
    for _ in range(2):
        publication._watch(Settings(), store, PAPERS[:3])
    assert len(sent) == 1
    publication._watch(Settings(), store, PAPERS[:4])
    assert len(sent) == 2


def test_prepared_replies_never_count_as_those_of_a_model() -> None:
    groups = paper_groups(PAPERS[:4])
    for replies in ("model", "scripted"):
        states = [s for s in groups[replies] if s[0] == "compilewatch_papers"]
        assert states == [("compilewatch_papers", (replies, "passed"), 2.0)]


def test_not_run_is_not_passed() -> None:
    journal = PAPERS[1].stages[:6]
    one = summarise_paper(journal, ())
    assert one.state == "incomplete"
    assert one.stages[-1].outcome is StageOutcome.NOT_RUN


def test_an_earlier_version_does_not_count_for_the_last_one() -> None:
    stages = {stage.stage: stage for stage in PAPERS[1].stages}
    newer = StageResult(
        paper="paper 1",
        stage=PipelineStage.GENERATE,
        key="newer",
        outcome=StageOutcome.PASSED,
        at="",
        generation="newer",
        numbers={"version": 1.0},
    )
    result = PaperFinding(
        kind=FindingClass.DISALLOWED, stage=PipelineStage.STATIC, evidence="import os"
    )
    static = StageResult(
        paper="paper 1",
        stage=PipelineStage.STATIC,
        key="newer",
        outcome=StageOutcome.FAILED,
        at="",
        generation="newer",
        findings=(result,),
    )
    one = summarise_paper([*stages.values(), newer, static], ())
    assert (one.state, one.repairs) == ("failed", 1)
    assert one.findings == (result,)
    assert (
        one.stages[list(PipelineStage).index(PipelineStage.SWEEP)].outcome is StageOutcome.NOT_RUN
    )


def test_the_page_shows_each_paper_and_escapes_what_models_wrote() -> None:
    finding = PaperFinding(
        kind=FindingClass.UNFAITHFUL,
        stage=PipelineStage.FAITHFUL,
        evidence="<script>alert(1)</script>",
    )
    stages = [
        StageResult(
            paper="p",
            stage=s.stage,
            key=s.key,
            outcome=StageOutcome.FAILED if s.stage is PipelineStage.FAITHFUL else s.outcome,
            at=s.at,
            generation=s.generation,
            findings=(finding,) if s.stage is PipelineStage.FAITHFUL else (),
        )
        for s in PAPERS[1].stages
    ]
    pages = dict(render([PAPERS[0], summarise_paper(stages, ())], ()))
    text = pages["index.html"].decode()
    assert "not the paper&#39;s contribution" in text
    assert "<script>" not in text
    assert 'id="paper 0"' in text


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


@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300])
def test_a_value_that_cloudwatch_would_reject_loses_itself_only(value: float) -> None:
    data, _ = execution_data([summary(1, FULL | {"training_loss": value, "test_accuracy": 0})], "x")
    assert {datum.name for datum in data} == FULL.keys() - {"training_loss"}


def test_the_page_says_what_was_repaired_and_how_the_training_went() -> None:
    one = summary(1, {"initial_training_loss": 2.5, "final_training_loss": 1.25})
    finding = PaperFinding(
        kind=FindingClass.GRAPH_BREAK,
        stage=PipelineStage.SWEEP,
        evidence="dynamo: <item()>",
        line=18,
    )
    earlier = StageResult(
        paper=one.paper,
        stage=PipelineStage.SWEEP,
        key="version 0",
        outcome=StageOutcome.FAILED,
        at="2026-11-22T09:00:00.000000000Z",
        generation="0" * 64,
        findings=(finding, finding),
    )
    repaired = summarise_paper([earlier, *one.stages], ())
    assert repaired.repaired == (finding,)
    assert repaired.state == "passed"
    text = dict(render([repaired], ()))["index.html"].decode()
    assert "sweep: graph break: dynamo: &lt;item()&gt; (line 18)" in text
    assert "training loss 2.5 at first, 1.25 at last" in text
    assert "sent back for a repair" not in dict(render([one], ()))["index.html"].decode()
