"""The journal of a paper while it goes through the stages: known results, and new ones, stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from compilewatch.extras.papers.execution import Ran
from compilewatch.extras.papers.records import (
    CodeVersion,
    PaperFinding,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.store import PaperFolder
from compilewatch.records.clock import now

Observer = Callable[[StageResult], None]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a stage made, before it is stored."""

    findings: tuple[PaperFinding, ...] = ()
    files: tuple[str, ...] = ()
    detail: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    not_run: str = ""
    scripted: bool = False


def failed(finding: PaperFinding) -> Made:
    return Made(findings=(finding,))


def listed(findings: Iterable[PaperFinding], detail: str) -> Made:
    found = tuple(findings)
    return Made(findings=found, detail="" if found else detail)


def made(ran: Ran, files: tuple[str, ...] = ()) -> Made:
    return Made(
        findings=ran.findings,
        files=(*files, *ran.files),
        detail=ran.detail,
        numbers=ran.numbers,
        labels=ran.labels,
        not_run=ran.not_run,
    )


@dataclass(kw_only=True)
class Journal:
    """The stage results of one paper. `version` is the version of the code that is at work."""

    paper: str
    folder: PaperFolder
    observer: Observer
    lines: list[StageResult]
    version: CodeVersion | None = None

    def stage(self, stage: PipelineStage, key: str, make: Callable[[], Made]) -> StageResult:
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
        self.stage(stage, f"{generation.id}-not-run", lambda: Made(not_run=why))

    def _result(self, stage: PipelineStage, key: str, new: Made) -> StageResult:
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
