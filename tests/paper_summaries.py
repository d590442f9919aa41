"""Stored papers as their publication sees them, without a pipeline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.extras.papers import records as kinds
from compilewatch.extras.papers.records import PaperSummary, PipelineStage, StageResult
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
    before_code = (PipelineStage.FIND, PipelineStage.READ, PipelineStage.PLAN)
    journal = [
        StageResult(
            paper=f"paper {number}",
            stage=stage,
            key=f"{stage} {number}",
            at=f"2026-11-22T10:{number % 60:02}:00.000000000Z",
            generation=None if stage in before_code else f"{number:064}",
            numbers=dict(numbers) if stage is PipelineStage.EXECUTE else {},
            labels={"dynamo": "pass", "export": "error"} if stage is PipelineStage.SWEEP else {},
            scripted=number % 2 == 0,
        )
        for stage in PipelineStage
    ]
    if unfaithful:
        (faithful,) = (one for one in journal if one.stage is PipelineStage.FAITHFUL)
        stock = kinds.finding_of(kinds.FindingClass.UNFAITHFUL, PipelineStage.FAITHFUL, "stock")
        failed = {"outcome": kinds.StageOutcome.FAILED, "findings": (stock,)}
        at = "2026-11-22T11:00:00.000000000Z"
        journal.append(
            msgspec.structs.replace(faithful, key=f"unfaithful {number}", at=at, **failed)
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
    of_version: dict[str, Any] = {"paper": version.paper, "generation": version.id, "key": "k"}
    at = "2026-01-02T03:04:05.000000000Z"
    folder.append(StageResult(stage=PipelineStage.GENERATE, at=at, files=files, **of_version))
