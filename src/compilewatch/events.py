"""What a run writes into `logs/<run>.jsonl`: one JSON object a line, one event each.

`ts` is RFC 3339 with nanoseconds, in UTC. `LABELS` are the fields with few values, fit for the
labels of a log store; `METADATA` are the other fields with one value each, its structured metadata.
`MEANINGS` says what each field holds; the same name means the same in every event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from compilewatch.contract.targets import target_label_value
from compilewatch.records import (
    SCHEMA_VERSION,
    Change,
    ChangeKind,
    ModelSpec,
    Record,
    Result,
    Run,
    Target,
)
from compilewatch.records.clock import now
from compilewatch.records.labels import mode_label_value, reason_label

LABELS = ("event", "level", "source", "device", "target", "mode")

LINE_ONLY = ("causes", "durations", "statuses")
"""Fields that hold lists and objects. Their text is not fixed (the order of keys, `0` or `0.0`),
and two texts would make two lines of one in a log store, so they stand in the line only."""

TEXT_LENGTH = 8000
"""Characters that `detail` has at most. A log store takes 64 KB of metadata and 256 KB a line; what
is cut off stands in the run's results."""

MEANINGS: dict[str, str] = {
    "ts": "when it happened: RFC 3339 with nanoseconds, UTC",
    "level": "`info`; `warning`: look at it; `error`: got worse, or was not published",
    "run": "the run's id, the name of its folder",
    "source": "where the models come from: `library`, `hub`, `manifest`, …",
    "device": "of the environments that were asked: `cpu`, …",
    "schema_version": "of this format",
    "planned": "requests in the plan",
    "reused": "requests answered from earlier runs",
    "skipped": "requests whose model cannot be asked, such as a gated one",
    "duplicates": "requests answered by another one's answer, as they ask the same",
    "jobs": "models checked at the same time",
    "plan_digest": "hash of the plan: runs that share it asked the same",
    "torch": "version, of the first environment; `none` where there is none",
    "torch_git": "git revision of torch",
    "transformers": "version; null where it is not installed",
    "python": "version",
    "shard": "which part of a plan this run is, such as `1/4`",
    "answered": "requests answered so far",
    "model": "its name: `org/model` or a class",
    "family": "the model type of its configuration, such as `bert`",
    "target": "`dynamo`, `export`, `inductor`, `xla`, `neuron`; without backend and environment",
    "mode": "`eval` or `train`",
    "dynamic": "whether it was compiled with dynamic shapes",
    "environment": "where it was asked, such as `default` or `torch-2.9`",
    "revision": "commit of the model",
    "status": "what came out: `pass`, `graph_break`, `mismatch`, `error`, `timeout`, `oom`, …",
    "phase": "where it ended: `setup` to `compare`, `profile`, `done`",
    "tier": "`fake` or `real` tensors",
    "depth": "`full`, or `reduced`: one of each kind of layer",
    "graphs": "graphs captured; null: not measured",
    "graph_breaks": "breaks met, repeated ones counted again",
    "distinct_breaks": "breaks that differ in place or reason",
    "fullgraph_accepted": "whether `fullgraph=True` compiles; null: not asked",
    "duration_seconds": "of all phases together",
    "durations": "seconds by phase, of those that were reached",
    "detail": "in words: why, as far as it is known",
    "error_code": "short code of the error, such as `backend_error`",
    "reused_from": "the run that the answer is from; null: asked in this one",
    "expectation": "why it is known not to work, from `expectations.toml`",
    "reason": "registry id and type, or a short code; bounded",
    "fingerprint": "of place and reason: the same break in another run has the same",
    "file": "where the model breaks, below the package's folder",
    "line": "in that file",
    "function": "in that file",
    "occurrences": "how often this break was met",
    "before": "status in the baseline; null: not asked there",
    "after": "status in this run; null: not asked here",
    "causes": "what else differs and may be why, such as `torch 2.12 -> 2.13`",
    "baseline": "the run compared with; null: none",
    "kind": ", ".join(f"`{kind}`" for kind in ChangeKind if kind is not ChangeKind.REGRESSION),
    "sink": "where the run was not published to",
    "wall_seconds": "how long the run took",
    "statuses": "how many results there are of each status",
    "regressions": "how many there are against the baseline",
    "fixed": "how many there are against the baseline",
}


class Event(Record, frozen=True, kw_only=True, tag_field="event"):
    """What every line has; `run` is the run's id."""

    ts: str
    level: str = "info"
    run: str
    source: str
    device: str
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Cuts a `detail` that is too long."""
        detail = getattr(self, "detail", "")
        if len(detail) > TEXT_LENGTH:
            cut = detail[: TEXT_LENGTH - 1] + "…"
            msgspec.structs.force_setattr(self, "detail", cut)


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """A sweep begins, or a merge."""

    planned: int
    reused: int
    skipped: int
    duplicates: int
    jobs: int
    plan_digest: str
    torch: str
    torch_git: str
    transformers: str | None
    python: str
    shard: str | None = None


class RunResumed(Event, frozen=True, kw_only=True, tag="run_resumed"):
    """An interrupted run is taken up again."""

    planned: int
    answered: int


class ModelEvent(Event, frozen=True, kw_only=True):
    """An event about one model on one target; `target` and `mode` are as in metrics."""

    model: str
    family: str
    target: str
    mode: str
    dynamic: bool
    environment: str
    revision: str | None = None


class ModelChecked(ModelEvent, frozen=True, kw_only=True, tag="model_checked"):
    """A request is answered: a `warning` where it reached no verdict and nobody expected that."""

    status: str
    phase: str
    tier: str
    depth: str
    graphs: int | None
    graph_breaks: int | None
    distinct_breaks: int | None
    fullgraph_accepted: bool | None
    duration_seconds: float
    durations: dict[str, float]
    detail: str
    error_code: str | None = None
    reused_from: str | None = None
    expectation: str | None = None


class BreakFound(ModelEvent, frozen=True, kw_only=True, tag="graph_break"):
    """One distinct break of an answer that this run asked for; `detail` is torch's own text."""

    reason: str
    fingerprint: str
    file: str
    line: int
    function: str
    occurrences: int
    detail: str


class Regression(ModelEvent, frozen=True, kw_only=True, tag="regression"):
    """Worse than in the baseline, where both runs gave a verdict."""

    before: str | None
    after: str | None
    detail: str
    causes: tuple[str, ...]
    baseline: str


class Changed(ModelEvent, frozen=True, kw_only=True, tag="change"):
    """Any change that is no regression."""

    kind: str
    before: str | None
    after: str | None
    detail: str
    causes: tuple[str, ...]
    baseline: str


class ExpectationStale(ModelEvent, frozen=True, kw_only=True, tag="expectation_stale"):
    """A line of `expectations.toml` no longer holds."""

    status: str
    detail: str


class SinkFailed(Event, frozen=True, kw_only=True, tag="sink_failed"):
    """A sink did not take the run."""

    sink: str
    detail: str


class RunInterrupted(Event, frozen=True, kw_only=True, tag="run_interrupted"):
    """The run ends with requests left; `--resume` takes it up."""

    planned: int
    answered: int
    detail: str


class RunFinished(Event, frozen=True, kw_only=True, tag="run_finished"):
    """Everything planned is answered and compared."""

    planned: int
    reused: int
    wall_seconds: float
    statuses: dict[str, int]
    regressions: int
    fixed: int
    baseline: str | None


EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    RunResumed,
    ModelChecked,
    BreakFound,
    Regression,
    Changed,
    ExpectationStale,
    SinkFailed,
    RunInterrupted,
    RunFinished,
)

METADATA = tuple(
    sorted(
        {name for event in EVENTS for name in event.__struct_fields__} - {"ts", *LABELS, *LINE_ONLY}
    )
)


class Author:
    """Stamps the events of one run with the time and with what they all share."""

    def __init__(self, run: Run) -> None:
        self._run = run
        devices = sorted({environment.device for environment in run.environments})
        self._device = "+".join(devices) or "unknown"

    def stamp(self, level: str = "info") -> dict[str, Any]:
        """The fields of `Event` itself."""
        return {
            "ts": now(),
            "level": level,
            "run": self._run.id,
            "source": self._run.source,
            "device": self._device,
        }

    def started(self, *, reused: int, skipped: int, duplicates: int) -> RunStarted:
        run = self._run
        # None where nothing could be asked: no environment that a target needs exists.
        environment = next(iter(run.environments), None)
        return RunStarted(
            **self.stamp(),
            planned=run.planned,
            reused=reused,
            skipped=skipped,
            duplicates=duplicates,
            jobs=run.jobs,
            plan_digest=run.plan_digest,
            torch=environment.torch if environment else "none",
            torch_git=environment.torch_git if environment else "none",
            transformers=environment.transformers if environment else None,
            python=environment.python if environment else "none",
            shard=run.shard,
        )

    def checked(self, result: Result) -> Iterator[Event]:
        """One `model_checked`, then one `graph_break` for each distinct break.

        The breaks of a reused answer were logged by the run that found them.
        """
        request = result.request
        failed = not result.is_verdict and result.expectation is None
        yield ModelChecked(
            **self._about(request.model, request.target, "warning" if failed else "info"),
            status=result.status.value,
            phase=result.phase.value,
            tier=result.tier.value,
            depth=result.depth.value,
            graphs=result.graphs,
            graph_breaks=result.graph_breaks,
            distinct_breaks=result.distinct_breaks,
            fullgraph_accepted=result.fullgraph.accepted if result.fullgraph else None,
            duration_seconds=round(result.duration_seconds, 6),
            durations={phase: round(spent, 6) for phase, spent in result.durations.items()},
            detail=result.detail,
            error_code=result.error.code if result.error else None,
            reused_from=result.reused_from,
            expectation=result.expectation,
        )
        for graph_break in result.breaks if result.reused_from is None else ():
            yield BreakFound(
                **self._about(request.model, request.target),
                reason=reason_label(graph_break),
                fingerprint=graph_break.fingerprint,
                file=graph_break.file,
                line=graph_break.line,
                function=graph_break.function,
                occurrences=graph_break.occurrences,
                detail=graph_break.reason,
            )

    def changed(self, change: Change, baseline: str) -> Event:
        """A `regression`, or a `change` of another kind."""
        regressed = change.kind is ChangeKind.REGRESSION
        fields: dict[str, Any] = {
            **self.stamp("error" if regressed else "info"),
            "model": change.model,
            "family": change.family,
            "target": target_label_value(change.target),
            "mode": mode_label_value(change.target),
            "dynamic": change.target.dynamic,
            "environment": change.target.environment,
            "before": change.before.value if change.before else None,
            "after": change.after.value if change.after else None,
            "detail": change.reason,
            "causes": change.causes,
            "baseline": baseline,
        }
        if regressed:
            return Regression(**fields)
        return Changed(kind=change.kind.value, **fields)

    def stale(self, note: str, result: Result) -> ExpectationStale:
        return ExpectationStale(
            **self._about(result.request.model, result.request.target, "warning"),
            status=result.status.value,
            detail=note,
        )

    def _about(self, model: ModelSpec, target: Target, level: str = "info") -> dict[str, Any]:
        return {
            **self.stamp(level),
            "model": model.name,
            "family": model.family,
            "target": target_label_value(target),
            "mode": mode_label_value(target),
            "dynamic": target.dynamic,
            "environment": target.environment,
            "revision": model.revision,
        }
