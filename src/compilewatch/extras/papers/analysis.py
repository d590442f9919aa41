"""What became of a paper, from its journal and the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from compilewatch.extras.papers.records import (
    CallState,
    ModelCall,
    PaperFinding,
    PaperSummary,
    PipelineStage,
    Spent,
    StageOutcome,
    StageResult,
)
from compilewatch.records import Record


def spent(entries: Iterable[ModelCall], *, papers: Iterable[str] | None = None) -> Spent:
    """Sums over entries, of some papers if they are named.

    A request that has not ended may have been paid for: it counts with the most that it can cost.
    """
    names = None if papers is None else frozenset(papers)
    chosen = [e for e in entries if names is None or e.paper in names]
    return Spent(
        requests=len(chosen),
        finished=sum(e.state is CallState.FINISHED for e in chosen),
        unfinished=sum(e.state is CallState.STARTED for e in chosen),
        usd=sum(e.usd or 0.0 for e in chosen),
        unpriced=sum(e.usd is None for e in chosen),
        input_tokens=sum(e.input_tokens for e in chosen),
        output_tokens=sum(e.output_tokens for e in chosen),
    )


def summarise_paper(journal: Sequence[StageResult], entries: Iterable[ModelCall]) -> PaperSummary:
    """The summary of a paper whose journal has at least one line.

    Only results of the last version of the code count; a stage without one was not run.
    """
    last: dict[PipelineStage, StageResult] = {result.stage: result for result in journal}
    generated = last.get(PipelineStage.GENERATE)
    generation = generated.generation if generated else None
    stages = tuple(_of_stage(stage, last, generation) for stage in PipelineStage)
    findings = tuple(finding for stage in stages for finding in stage.findings)
    paper = journal[0].paper
    mine = [entry for entry in entries if entry.paper == paper]
    return PaperSummary(
        paper=paper,
        title=last[PipelineStage.FIND].labels.get("title", paper)
        if PipelineStage.FIND in last
        else paper,
        state=_state(stages),
        stages=stages,
        findings=findings,
        generation=generation,
        repairs=_repairs(journal, generation),
        spent=spent(mine),
        scripted=any(result.scripted for result in journal),
        model=next((entry.model for entry in reversed(mine)), ""),
        dataset=last[PipelineStage.PLAN].labels.get("dataset", "")
        if PipelineStage.PLAN in last
        else "",
        repaired=_repaired(journal, generation),
    )


def _repaired(journal: Sequence[StageResult], generation: str | None) -> tuple[PaperFinding, ...]:
    """What was found in earlier versions, each finding once."""
    earlier = (one for one in journal if one.generation not in (None, generation))
    return tuple(dict.fromkeys(finding for one in earlier for finding in one.findings))


def _of_stage(
    stage: PipelineStage, last: Mapping[PipelineStage, StageResult], generation: str | None
) -> StageResult:
    result = last.get(stage)
    if result is not None and result.generation in (None, generation):
        return result
    failed = [s for s in PipelineStage if s in last and last[s].outcome is StageOutcome.FAILED]
    earlier = [s for s in failed if list(PipelineStage).index(s) < list(PipelineStage).index(stage)]
    why = f"not reached: {earlier[-1]} failed" if earlier else "not reached"
    paper = next(iter(last.values())).paper
    return StageResult(
        paper=paper, stage=stage, key="", outcome=StageOutcome.NOT_RUN, at="", detail=why
    )


def _repairs(journal: Sequence[StageResult], generation: str | None) -> int:
    """How many versions came before the last one of the current code."""
    numbers = [
        result.numbers.get("version", 0.0)
        for result in journal
        if result.stage is PipelineStage.GENERATE and result.generation == generation
    ]
    return int(numbers[-1]) if numbers else 0


def _state(stages: Iterable[StageResult]) -> str:
    outcomes = {stage.outcome for stage in stages}
    if StageOutcome.FAILED in outcomes:
        return "failed"
    return "incomplete" if StageOutcome.NOT_RUN in outcomes else "passed"


class Funnel(Record, frozen=True, kw_only=True):
    """How many papers passed each stage, and what was wrong with the others."""

    papers: int
    passed: dict[PipelineStage, int]
    findings: dict[str, int]
    states: dict[str, int]
    spent: Spent
    scripted: bool

    @property
    def usd_per_success(self) -> float | None:
        """US dollars per paper that passed every stage; None if none did."""
        successes = self.states.get("passed", 0)
        return self.spent.usd / successes if successes else None


def funnel(summaries: Sequence[PaperSummary]) -> Funnel:
    """The funnel from found to executed."""
    passed = {
        stage: sum(one.stages[number].outcome is StageOutcome.PASSED for one in summaries)
        for number, stage in enumerate(PipelineStage)
    }
    kinds = Counter(kind for one in summaries for kind in {f.kind.value for f in one.findings})
    return Funnel(
        papers=len(summaries),
        passed=passed,
        findings=dict(sorted(kinds.items())),
        states=dict(Counter(one.state for one in summaries)),
        spent=Spent(
            requests=sum(s.spent.requests for s in summaries),
            finished=sum(s.spent.finished for s in summaries),
            unfinished=sum(s.spent.unfinished for s in summaries),
            usd=sum(s.spent.usd for s in summaries),
            unpriced=sum(s.spent.unpriced for s in summaries),
            input_tokens=sum(s.spent.input_tokens for s in summaries),
            output_tokens=sum(s.spent.output_tokens for s in summaries),
        ),
        scripted=any(one.scripted for one in summaries),
    )


def first_finding(summary: PaperSummary) -> PaperFinding | None:
    """The finding that stopped a paper first."""
    return summary.findings[0] if summary.findings else None
