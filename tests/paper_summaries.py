"""Stored papers as their publication sees them, without a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compilewatch.extras.papers.records import (
    FindingClass,
    PaperFinding,
    PaperSummary,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import PaperStore, summarise_paper
from tests import papers

FULL = {
    "training_loss": 1.5,
    "test_accuracy": 50.0,
    "execution_time_seconds": 3.0,
    "execution_success": 1.0,
    "peak_memory_mb": 200.0,
    "estimated_cost_usd": 0.01,
}


def summary(number: int, numbers: Mapping[str, float], *, unfaithful: bool = False) -> PaperSummary:
    """A paper that was executed, with numbers of its execution."""
    paper, version = f"paper {number}", f"{number:064}"
    journal = [
        StageResult(
            paper=paper,
            stage=stage,
            key=f"{stage} {number}",
            outcome=StageOutcome.PASSED,
            at=f"2026-11-22T10:{number % 60:02}:00.000000000Z",
            generation=version
            if stage not in (PipelineStage.FIND, PipelineStage.READ, PipelineStage.PLAN)
            else None,
            numbers=dict(numbers) if stage is PipelineStage.EXECUTE else {},
            labels={"dynamo": "pass", "export": "error"} if stage is PipelineStage.SWEEP else {},
            scripted=number % 2 == 0,
        )
        for stage in PipelineStage
    ]
    if unfaithful:
        journal.append(
            StageResult(
                paper=paper,
                stage=PipelineStage.FAITHFUL,
                key=f"unfaithful {number}",
                outcome=StageOutcome.FAILED,
                at="2026-11-22T11:00:00.000000000Z",
                generation=version,
                findings=(
                    PaperFinding(
                        kind=FindingClass.UNFAITHFUL, stage=PipelineStage.FAITHFUL, evidence="stock"
                    ),
                ),
                scripted=number % 2 == 0,
            )
        )
    return summarise_paper(journal, ())


def store_code(outputs: Path) -> None:
    """One version of the code of one paper."""
    version = papers.version("def model(): ...", "gated-residual", id="0" * 64)
    folder = PaperStore(outputs).folder(version.paper)
    files = (
        folder.write(PipelineStage.GENERATE, version.source.encode(), ".py"),
        folder.write_record(PipelineStage.GENERATE, version),
    )
    folder.append(
        StageResult(
            paper=version.paper,
            stage=PipelineStage.GENERATE,
            key="k",
            outcome=StageOutcome.PASSED,
            at="2026-01-02T03:04:05.000000000Z",
            generation=version.id,
            files=files,
        )
    )
