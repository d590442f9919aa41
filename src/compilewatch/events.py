"""The events of `logs/<run>.jsonl`. Each line is one event, written as a JSON object.

`ts` is RFC 3339 with nanoseconds, in UTC. `LABELS` are the fields with few values, which become the
labels of a log store; the other fields with a single value become its structured metadata.
`MEANINGS` describes every field; a name means the same in every event. Extras have further events.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from compilewatch import extras, plugins, records
from compilewatch.contract.targets import target_label_value

LABELS = ("event", "level", "source", "device", "target", "mode")

LINE_ONLY = ("causes", "durations", "statuses")
"""Fields that hold lists and objects. Their text can vary (the order of keys, `0` or `0.0`), and a
log store would keep two lines for one event if their metadata differed, so these fields are in the
line only."""

TEXT_LENGTH = 8000
"""Maximum length of `detail`, in characters. A log store accepts 64 KB of metadata and 256 KB per
line. The results of the run contain the complete text."""

MEANINGS: dict[str, str] = {
    "ts": "when it happened: RFC 3339 with nanoseconds, UTC",
    "level": "`info`; `warning`: needs attention; `error`: a regression or a failed publication",
    "run": "ID of the run, which is the name of its folder",
    "source": "where the models come from: `library`, `hub`, `manifest`, …",
    "device": "device of the environments, such as `cpu`",
    "schema_version": "version of this format",
    "planned": "requests in the plan",
    "reused": "requests whose result is reused from an earlier run",
    "skipped": "requests that cannot be evaluated, such as those of a gated model",
    "duplicates": "requests that share the result of another request, because their keys are equal",
    "jobs": "requests evaluated at the same time",
    "plan_digest": "hash of the plan: equal for runs of the same plan",
    "torch": "version of torch in the first environment; `none` if there is no environment",
    "torch_git": "git revision of torch",
    "transformers": "version of Transformers; null if it is not installed",
    "python": "version of Python",
    "shard": "the part of the plan that this run covers, such as `1/4`",
    "answered": "requests that have a result",
    "model": "name of the model: `org/model` or a class",
    "family": "model type from the configuration, such as `bert`",
    "target": "its name, such as `dynamo` or `export`, without backend and environment",
    "mode": "`eval` or `train`",
    "dynamic": "whether the model was compiled with dynamic shapes",
    "environment": "the environment in which it was evaluated, such as `default` or `torch-2.9`",
    "revision": "commit of the model",
    "status": "`pass`, `graph_break`, `mismatch`, `error`, `timeout`, `oom`, …",
    "phase": "the phase in which it ended: `setup` to `compare`, `profile`, `done`",
    "tier": "`fake` or `real` tensors",
    "depth": "`full`, or `reduced`: one of each kind of layer",
    "graphs": "graphs captured; null: not measured",
    "graph_breaks": "graph breaks, counted each time that they occur",
    "distinct_breaks": "graph breaks that differ in place or reason",
    "fullgraph_accepted": "whether `fullgraph=True` accepts the model; null: not evaluated",
    "duration_seconds": "duration of all phases together",
    "durations": "seconds by phase, for the phases that were reached",
    "detail": "explanation in words, as far as the cause is known",
    "error_code": "short code of the error, such as `backend_error`",
    "reused_from": "the run that the result is reused from; null: evaluated in this run",
    "expectation": "why the model is known not to pass, from `expectations.toml`",
    "reason": "ID and type in PyTorch's registry, or a short code; bounded",
    "fingerprint": "hash of place and reason: the same graph break has the same one in every run",
    "file": "file of the graph break, relative to the folder of its package",
    "line": "line in that file",
    "function": "function in that file",
    "occurrences": "how often this graph break occurred",
    "before": "status in the baseline; null: not evaluated there",
    "after": "status in this run; null: not evaluated here",
    "causes": "other differences that may be the cause, such as `torch 2.12 -> 2.13`",
    "baseline": "the run that this run was compared with; null: none",
    "kind": ", ".join(
        f"`{kind}`" for kind in records.ChangeKind if kind is not records.ChangeKind.REGRESSION
    ),
    "sink": "the sink that did not accept the run",
    "wall_seconds": "wall-clock time of the run",
    "statuses": "number of results by status",
    "regressions": "number of regressions from the baseline",
    "fixed": "number of models and targets that are fixed since the baseline",
}


class Event(records.Record, frozen=True, kw_only=True, tag_field="event"):
    """The fields of every line."""

    ts: str
    level: str = "info"
    run: str
    source: str
    device: str
    schema_version: int = records.SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Shorten a `detail` that exceeds `TEXT_LENGTH`."""
        detail = getattr(self, "detail", "")
        if len(detail) > TEXT_LENGTH:
            cut = detail[: TEXT_LENGTH - 1] + "…"
            msgspec.structs.force_setattr(self, "detail", cut)


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """A sweep or a merge starts."""

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
    """An interrupted run continues (`--resume`)."""

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
    """A request has a result; a `warning` if it is not a verdict and no expectation covers it."""

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
    """One distinct graph break that this run found; `detail` is PyTorch's own text."""

    reason: str
    fingerprint: str
    file: str
    line: int
    function: str
    occurrences: int
    detail: str


class Regression(ModelEvent, frozen=True, kw_only=True, tag="regression"):
    """A model and target got worse since the baseline; both runs have a verdict."""

    before: str | None
    after: str | None
    detail: str
    causes: tuple[str, ...]
    baseline: str


class Changed(Regression, frozen=True, kw_only=True, tag="change"):
    """A change since the baseline that is not a regression."""

    kind: str


class ExpectationStale(ModelEvent, frozen=True, kw_only=True, tag="expectation_stale"):
    """An expectation in `expectations.toml` no longer holds."""

    status: str
    detail: str


class SinkFailed(Event, frozen=True, kw_only=True, tag="sink_failed"):
    """A sink did not accept the run."""

    sink: str
    detail: str


class RunInterrupted(Event, frozen=True, kw_only=True, tag="run_interrupted"):
    """The run ended before all requests had a result; `--resume` continues it."""

    planned: int
    answered: int
    detail: str


class RunFinished(Event, frozen=True, kw_only=True, tag="run_finished"):
    """Every planned request has a result, and the run was compared with its baseline."""

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


def all_events() -> tuple[type[Event], ...]:
    """Return the events of the core, then those of the extras."""
    return (*EVENTS, *(e for module in extras.EVENTS for e in plugins.load(f"{module}:EVENTS")))


def all_meanings() -> dict[str, str]:
    """Return what every field of every event means."""
    meanings = dict(MEANINGS)
    for module in extras.EVENTS:
        meanings |= plugins.load(f"{module}:MEANINGS")
    return meanings


def metadata_of(fields: Iterable[str]) -> tuple[str, ...]:
    """Return which fields of events become structured metadata: all that are nothing else."""
    return tuple(sorted(set(fields) - {"ts", *LABELS, *LINE_ONLY}))


class EventFactory:
    """Makes the events of one run, with the time and the fields that they share."""

    def __init__(self, run: records.Run) -> None:
        self._run = run
        devices = sorted({environment.device for environment in run.environments})
        self._device = "+".join(devices) or "unknown"

    def stamp(self, level: str = "info") -> dict[str, Any]:
        """Return the fields of `Event` itself."""
        return {
            "ts": records.now(),
            "level": level,
            "run": self._run.id,
            "source": self._run.source,
            "device": self._device,
        }

    def started(self, *, reused: int, skipped: int, duplicates: int) -> RunStarted:
        run = self._run
        # None if no environment exists that a target needs.
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

    def checked(self, result: records.Result) -> Iterator[Event]:
        """Yield one `model_checked`, then one `graph_break` for each distinct graph break.

        The graph breaks of a reused result were logged by the run that found them.
        """
        failed = not result.is_conclusive and result.expectation is None
        yield ModelChecked(
            **self._of(result, "warning" if failed else "info"),
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
                **self._of(result),
                reason=records.reason_label(graph_break),
                fingerprint=graph_break.fingerprint,
                file=graph_break.file,
                line=graph_break.line,
                function=graph_break.function,
                occurrences=graph_break.occurrences,
                detail=graph_break.reason,
            )

    def changed(self, change: records.Change, baseline: str) -> Event:
        """Return a `regression`, or a `change` for every other kind."""
        regressed = change.kind is records.ChangeKind.REGRESSION
        level = "error" if regressed else "info"
        fields = self._about(change.model, change.family, change.target, level) | {
            "before": change.before.value if change.before else None,
            "after": change.after.value if change.after else None,
            "detail": change.reason,
            "causes": change.causes,
            "baseline": baseline,
        }
        if regressed:
            return Regression(**fields)
        return Changed(kind=change.kind.value, **fields)

    def failed(self, failures: Iterable[tuple[str, str]]) -> list[SinkFailed]:
        """Return an event for each (sink, why)."""
        return [SinkFailed(**self.stamp("error"), sink=sink, detail=why) for sink, why in failures]

    def finished(self, view: records.RunView, reused: int) -> RunFinished:
        kinds = Counter(change.kind for change in view.changes)
        counts = Counter(result.status for result in view.results)
        return RunFinished(
            **self.stamp(),
            planned=view.run.planned,
            reused=reused,
            wall_seconds=round(view.run.wall_seconds or 0.0, 3),
            statuses={status.value: counts[status] for status in records.Status if counts[status]},
            regressions=kinds[records.ChangeKind.REGRESSION],
            fixed=kinds[records.ChangeKind.FIXED],
            baseline=view.baseline.id if view.baseline else None,
        )

    def stale(self, note: str, result: records.Result) -> ExpectationStale:
        return ExpectationStale(
            **self._of(result, "warning"),
            status=result.status.value,
            detail=note,
        )

    def _of(self, result: records.Result, level: str = "info") -> dict[str, Any]:
        model = result.request.model
        about = self._about(model.name, model.family, result.request.target, level)
        return about | {"revision": model.revision}

    def _about(self, model: str, family: str, target: records.Target, level: str) -> dict[str, Any]:
        return {
            **self.stamp(level),
            "model": model,
            "family": family,
            "target": target_label_value(target),
            "mode": target.mode_label,
            "dynamic": bool(target.dynamic),
            "environment": target.environment,
        }
