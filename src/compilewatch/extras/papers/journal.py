"""The journal of a paper while it goes through the stages: known results, and new ones, stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from compilewatch.extras.papers.records import (
    CodeVersion,
    PaperFinding,
    PipelineStage,
    StageContent,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import PaperFolder
from compilewatch.records.clock import now

Observer = Callable[[StageResult], None]


def failed(finding: PaperFinding) -> StageContent:
    return StageContent(findings=(finding,))


def listed(findings: Iterable[PaperFinding], detail: str) -> StageContent:
    found = tuple(findings)
    return StageContent(findings=found, detail="" if found else detail)


@dataclass(kw_only=True)
class Journal:
    """The stage results of one paper. `version` is the version of the code that is at work."""

    paper: str
    folder: PaperFolder
    observer: Observer
    lines: list[StageResult]
    version: CodeVersion | None = None

    def stage(
        self, stage: PipelineStage, key: str, make: Callable[[], StageContent]
    ) -> StageResult:
        """The result of a stage from the journal, or a new one, stored."""
        for known in reversed(self.lines):
            if known.stage is stage and known.key == key and known.is_lasting:
                if self.lines[-1] is not known:
                    # The newest line of a stage is what counts: keep this one as the newest here.
                    self.lines.append(known)
                return known
        result = self._result(stage, key, make())
        if (same := _repeated(self.lines, result)) is not None:
            result = same
        else:
            self.folder.append(result)
        self.lines.append(result)
        self.observer(result)
        return result

    def not_run(self, stage: PipelineStage, generation: CodeVersion, why: str) -> None:
        """Store why a stage of a version was not run."""
        self.stage(stage, f"{generation.id}-not-run", lambda: StageContent(not_run=why))

    def _result(self, stage: PipelineStage, key: str, new: StageContent) -> StageResult:
        outcome = StageOutcome.FAILED if new.findings else StageOutcome.PASSED
        if new.not_run:
            outcome = StageOutcome.NOT_RUN
        of_code = stage not in (PipelineStage.FIND, PipelineStage.READ, PipelineStage.PLAN)
        version = self.version if of_code else None
        return StageResult(
            paper=self.paper,
            stage=stage,
            key=key,
            outcome=outcome,
            at=now(),
            generation=version.id if version else None,
            detail=new.not_run or new.detail,
            findings=new.findings,
            files=new.files,
            # JSON has no NaN: one would make the line unreadable.
            numbers={n: value for n, value in new.numbers.items() if math.isfinite(value)},
            labels=new.labels,
            scripted=new.scripted or (version.scripted if version else False),
        )


def _repeated(journal: Sequence[StageResult], result: StageResult) -> StageResult | None:
    """The newest line of the stage if it says the same, so that running again adds nothing."""
    last = next((known for known in reversed(journal) if known.stage is result.stage), None)
    if last is None or result.is_lasting:
        return None
    same = msgspec.structs.replace(last, at=result.at, files=result.files, numbers=result.numbers)
    return last if same == result else None
