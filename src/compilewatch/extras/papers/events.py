"""The events of papers."""

from __future__ import annotations

from compilewatch.events import Event
from compilewatch.extras.papers.records import StageResult

MEANINGS: dict[str, str] = {
    "paper": "id of the paper",
    "stage": "stage of the papers pipeline: `find` to `execute`",
    "outcome": "`passed`, `failed` or `not_run`",
    "finding": "class of the first finding, such as `unfaithful`; null: nothing is wrong",
    "generation": "SHA-256 of the version of the code; null: the stage is about none",
    "scripted": "whether the code comes from prepared replies instead of a model",
}


class PaperStageEnded(Event, frozen=True, kw_only=True, tag="paper_stage_ended"):
    """A stage of a paper ended. `run` is empty, and `ts` is when the stage ended."""

    paper: str
    stage: str
    outcome: str
    finding: str | None
    generation: str | None
    scripted: bool
    detail: str


def paper_stage(result: StageResult) -> PaperStageEnded:
    """The event of a line of a paper's journal: the same each time it is made."""
    finding = result.findings[0] if result.findings else None
    return PaperStageEnded(
        ts=result.at,
        level="warning" if finding else "info",
        run="",
        source="papers",
        device="cpu",
        paper=result.paper,
        stage=result.stage.value,
        outcome=result.outcome.value,
        finding=finding.kind.value if finding else None,
        generation=result.generation,
        scripted=result.scripted,
        detail=finding.evidence if finding else result.detail,
    )


EVENTS: tuple[type[Event], ...] = (PaperStageEnded,)
