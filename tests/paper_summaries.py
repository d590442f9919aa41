"""Stored papers as their publication sees them, without a pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from compilewatch.extras.papers.analysis import summarise_paper
from compilewatch.extras.papers.records import (
    Finding,
    FindingClass,
    PaperSummary,
    Stage,
    StageOutcome,
    StageResult,
)

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
            generation=version if stage not in (Stage.FIND, Stage.READ, Stage.PLAN) else None,
            numbers=dict(numbers) if stage is Stage.EXECUTE else {},
            labels={"dynamo": "pass", "export": "error"} if stage is Stage.SWEEP else {},
            scripted=number % 2 == 0,
        )
        for stage in Stage
    ]
    if unfaithful:
        journal.append(
            StageResult(
                paper=paper,
                stage=Stage.FAITHFUL,
                key=f"unfaithful {number}",
                outcome=StageOutcome.FAILED,
                at="2026-11-22T11:00:00.000000000Z",
                generation=version,
                findings=(
                    Finding(kind=FindingClass.UNFAITHFUL, stage=Stage.FAITHFUL, evidence="stock"),
                ),
                scripted=number % 2 == 0,
            )
        )
    return summarise_paper(journal, ())
