"""Metrics of stored papers: samples for Prometheus, and data for CloudWatch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from compilewatch.events import Event
from compilewatch.extras.papers.analysis import funnel
from compilewatch.extras.papers.records import (
    FindingClass,
    PaperSummary,
    PipelineStage,
    StageOutcome,
    StageResult,
)
from compilewatch.records import Record
from compilewatch.sinks.prometheus import Definition, MetricGroup, Sample

MODEL, SCRIPTED = "model", "scripted"

PAPERS_SHOWN = 100
"""Papers that have a series of their own; all of them are counted."""

TITLE_CHARACTERS = 120


def paper_groups(summaries: Sequence[PaperSummary]) -> dict[str, list[Sample]]:
    """Samples by the origin of the code: prepared replies never count as those of a model."""
    of_model = [one for one in summaries if not one.scripted]
    scripted = [one for one in summaries if one.scripted]
    return {MODEL: _samples(MODEL, of_model), SCRIPTED: _samples(SCRIPTED, scripted)}


def _samples(replies: str, summaries: Sequence[PaperSummary]) -> list[Sample]:
    stages = Counter((s.stage, s.outcome) for one in summaries for s in one.stages)
    total = funnel(summaries)
    verdicts = Counter(
        (target, status)
        for one in summaries
        for stage in one.stages
        if stage.stage is PipelineStage.SWEEP
        for target, status in stage.labels.items()
    )
    repairs = Counter(str(one.repairs) for one in summaries)
    return [
        *(_one("stages", replies, n, s.value, o.value) for (s, o), n in sorted(stages.items())),
        *(
            ("compilewatch_papers", (replies, state), float(n))
            for state, n in sorted(total.states.items())
        ),
        *(_one("info", replies, 1, *_about(one)) for one in _newest(summaries)),
        *(_one("findings", replies, n, kind) for kind, n in total.findings.items()),
        *(_one("verdicts", replies, n, *labels) for labels, n in sorted(verdicts.items())),
        *(_one("repairs", replies, n, text) for text, n in sorted(repairs.items())),
        _one("requests", replies, total.spent.requests),
        _one("tokens", replies, total.spent.input_tokens, "input"),
        _one("tokens", replies, total.spent.output_tokens, "output"),
        *([] if total.spent.unpriced else [_one("usd", replies, total.spent.usd)]),
        *(
            []
            if total.spent.unpriced or total.usd_per_success is None
            else [_one("success_usd", replies, total.usd_per_success)]
        ),
    ]


def _newest(summaries: Sequence[PaperSummary]) -> list[PaperSummary]:
    """The papers with a series of their own: those worked on last."""
    at = {one.paper: max((s.at for s in one.stages), default="") for one in summaries}
    return sorted(summaries, key=lambda one: (at[one.paper], one.paper), reverse=True)[
        :PAPERS_SHOWN
    ]


def _about(one: PaperSummary) -> tuple[str, str, str, str]:
    stopped = (s.stage.value for s in one.stages if s.outcome is not StageOutcome.PASSED)
    return one.paper, one.title[:TITLE_CHARACTERS], one.state, next(stopped, "")


def _one(name: str, replies: str, value: float, *labels: str) -> Sample:
    return f"compilewatch_paper_{name}", (replies, *labels), float(value)


# --- CloudWatch ---

EXECUTION = {
    "training_loss": "None",
    "test_accuracy": "Percent",
    "execution_time_seconds": "Seconds",
    "execution_success": "None",
    "peak_memory_mb": "Megabytes",
    "estimated_cost_usd": "None",
}
"""Metric -> CloudWatch's unit. The dimensions are InstanceType and Replies; never job or paper."""

SMALLEST, LARGEST = 8.515920e-109, 1.174271e108
"""The range of values of CloudWatch (MetricDatum), beside 0."""

MAX_VALUES = 150
"""Values in one datum (PutMetricData)."""


class Datum(Record, frozen=True, kw_only=True):
    """Values of one metric at one time, with the dimensions in order."""

    name: str
    unit: str
    dimensions: tuple[tuple[str, str], ...]
    at: str
    values: tuple[float, ...]

    def request(self) -> dict[str, Any]:
        """As PutMetricData takes it."""
        return {
            "MetricName": self.name,
            "Dimensions": [{"Name": name, "Value": value} for name, value in self.dimensions],
            "Timestamp": datetime.fromisoformat(self.at),
            "Values": list(self.values),
            "Unit": self.unit,
        }


def execution_data(
    summaries: Iterable[PaperSummary], instance_type: str, known: frozenset[str] = frozenset()
) -> tuple[list[Datum], list[str]]:
    """The data of executions that are not `known` yet, and the keys of these executions.

    A value that is not a number is left out, and no other value with it.
    """
    values: dict[tuple[str, tuple[tuple[str, str], ...], str], list[float]] = {}
    keys = []
    for one in summaries:
        stage = next(s for s in one.stages if s.stage is PipelineStage.EXECUTE)
        key = f"{one.paper}/{stage.key}/{stage.at}"
        if stage.outcome is StageOutcome.NOT_RUN or key in known:
            continue
        keys.append(key)
        dimensions = (
            ("InstanceType", instance_type if stage.labels.get("where") == "executor" else "local"),
            ("Replies", SCRIPTED if one.scripted else MODEL),
        )
        for name, value in _finite(stage.numbers).items():
            # One minute is CloudWatch's resolution, so executions of a minute share a datum.
            values.setdefault((name, dimensions, f"{stage.at[:16]}:00+00:00"), []).append(value)
    return list(_data(values)), keys


def _finite(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: numbers[name] for name in EXECUTION if _accepted(numbers.get(name, math.nan))}


def _accepted(value: float) -> bool:
    """Whether CloudWatch takes a value; one that it does not take would lose the whole request."""
    return value == 0.0 or (math.isfinite(value) and SMALLEST <= abs(value) <= LARGEST)


def _data(
    values: Mapping[tuple[str, tuple[tuple[str, str], ...], str], list[float]],
) -> Iterator[Datum]:
    for (name, dimensions, at), measured in values.items():
        for start in range(0, len(measured), MAX_VALUES):
            yield Datum(
                name=name,
                unit=EXECUTION[name],
                dimensions=dimensions,
                at=at,
                values=tuple(measured[start : start + MAX_VALUES]),
            )


PAPERS = MetricGroup("papers", ("replies",))

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_paper_stages",
        "Stored papers by stage of the pipeline and outcome of the stage.",
        ("stage", "outcome"),
        PAPERS,
    ),
    Definition(
        "compilewatch_papers",
        "Stored papers: passed every stage, failed one, or incomplete (a stage was not run).",
        ("state",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_info",
        "Always 1; the labels say what became of a paper: its state, and the first stage that it "
        "did not pass. Of the 100 papers that were worked on last.",
        ("paper", "title", "state", "stage"),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_findings",
        "Stored papers with a finding of this class in the last version of their code.",
        ("finding",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_verdicts",
        "Generated models by compile target and status.",
        ("target", "status"),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_repairs",
        "Stored papers by the number of repairs of their code.",
        ("repairs",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_requests",
        "Requests to the language model for all stored papers.",
        (),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_tokens",
        "Tokens of these requests.",
        ("direction",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_usd",
        "US dollars that these requests cost, by the reviewed prices; absent if one is unknown.",
        (),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_success_usd",
        "US dollars divided by the papers that passed every stage; absent if none did.",
        (),
        PAPERS,
    ),
)

LABELS: dict[str, str] = {
    "replies": "where the code of papers comes from: `model`, or `scripted` (prepared replies)",
    "stage": "a stage of the papers pipeline: "
    + ", ".join(f"`{stage}`" for stage in PipelineStage),
    "outcome": ", ".join(f"`{outcome}`" for outcome in StageOutcome),
    "state": "`passed`, `failed`, `incomplete`",
    "finding": ", ".join(f"`{kind}`" for kind in FindingClass),
    "repairs": "`0` to `3`",
    "paper": "the paper's id: a number of arXiv or a file's name",
    "title": "the title of the paper, cut after 120 characters",
    "direction": "`input` or `output`",
}


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
