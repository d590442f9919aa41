"""`metrics.prom`: a run in the Prometheus text format, and the table of every metric.

Values describe one run and are replaced by the next one; nothing accumulates. All metrics are
gauges but `compile_breaks_total`, which keeps the name that dashboards ask for: promtool accepts
`_total` on counters only, so it is exposed as one, without a `_created` sample. It starts again
with every run: use it as it is, `rate()` and `increase()` mean nothing on it.

docs/metrics.md is generated from the same table (`make generate`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compilewatch.analysis import summary
from compilewatch.analysis.reasons import reason_label
from compilewatch.analysis.view import RunView
from compilewatch.records import ChangeKind, Phase, Request, Result, Status
from compilewatch.sinks import Write


class Definition(NamedTuple):
    """One metric: what `# HELP` and docs/metrics.md say, and the labels in order."""

    name: str
    help: str
    labels: tuple[str, ...]


ASKED = ("model", "family", "target", "mode")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compile_breaks_total",
        "Graph breaks of the latest run by reason; nothing for a model without breaks.",
        ("model", "family", "commit", "reason", "target", "mode"),
    ),
    Definition(
        "compilewatch_model_status",
        "1 for the status that the latest run gave, with the phase it was reached in.",
        (*ASKED, "status", "phase"),
    ),
    Definition(
        "compilewatch_model_info",
        "1, with what identifies the model; commit is its Hub revision, empty where it has none.",
        ("model", "family", "commit", "source", "architecture", "task"),
    ),
    Definition(
        "compilewatch_model_downloads",
        "Downloads over 30 days that the source reported; nothing where unknown.",
        ("model", "family"),
    ),
    Definition(
        "compilewatch_model_parameters", "Parameters of the model as built.", ("model", "family")
    ),
    Definition(
        "compilewatch_fullgraph_accepted",
        "1 where torch.compile(fullgraph=True) accepts the model, 0 where it does not.",
        ASKED,
    ),
    Definition("compilewatch_graphs", "Graphs captured from one forward call.", ASKED),
    Definition(
        "compilewatch_graph_breaks", "Graph breaks hit, all occurrences; 0 where none.", ASKED
    ),
    Definition(
        "compilewatch_distinct_graph_breaks", "Distinct graph breaks: a cause at a place.", ASKED
    ),
    Definition(
        "compilewatch_unattributed_graph_breaks", "Graph breaks that have no reason.", ASKED
    ),
    Definition("compilewatch_ops", "Operations in all captured graphs.", ASKED),
    Definition("compilewatch_guards", "Guards of all captured graphs.", ASKED),
    Definition(
        "compilewatch_phase_duration_seconds",
        "Wall-clock time of a phase; of the run that measured it, where the answer is reused.",
        (*ASKED, "phase"),
    ),
    Definition(
        "compilewatch_peak_memory_bytes", "Peak resident memory of the model's process.", ASKED
    ),
    Definition(
        "compilewatch_results",
        "Results by status; skipped and unsupported are not passed.",
        ("family", "target", "mode", "status"),
    ),
    Definition(
        "compilewatch_changes",
        "Differences from the baseline; nothing at all where no baseline was compared.",
        ("family", "target", "mode", "kind"),
    ),
    Definition(
        "compilewatch_planned_requests", "Models times targets that the run was to answer.", ()
    ),
    Definition(
        "compilewatch_coverage_ratio",
        "Verdicts (pass, graph break, mismatch, compile error) of all asked; skipped left out.",
        (),
    ),
    Definition(
        "compilewatch_untestable_ratio",
        "Results without a verdict, skipped ones included, of all results.",
        (),
    ),
    Definition(
        "compilewatch_reused_ratio", "Results answered from an earlier run, of all results.", ()
    ),
    Definition(
        "compilewatch_overhead_ratio",
        "Wall-clock time times jobs, divided by the time inside models' processes.",
        (),
    ),
    Definition(
        "compilewatch_run_info",
        "1, with what ran; one series per environment.",
        (
            "run",
            "source",
            "state",
            "environment",
            "device",
            "python",
            "torch",
            "torch_git",
            "transformers",
            "harness_version",
        ),
    ),
    Definition("compilewatch_run_duration_seconds", "Wall-clock time of the run.", ()),
    Definition("compilewatch_last_start_timestamp_seconds", "When the latest run began.", ()),
    Definition(
        "compilewatch_last_completion_timestamp_seconds",
        "When the latest run ended, completely or not.",
        (),
    ),
    Definition(
        "compilewatch_last_success_timestamp_seconds",
        "When the latest run ended, if it answered its whole plan; nothing otherwise.",
        (),
    ),
)

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""


class MetricsFileSink:
    """Writes `metrics.prom` into the run's folder."""

    name = "metrics_file"

    def publish(self, view: RunView, write: Write) -> str:
        write("metrics.prom", exposition(view))
        return "metrics.prom"


def exposition(view: RunView) -> bytes:
    """The run in the Prometheus text format 0.0.4, UTF-8."""
    return generate_latest(registry(view))


def registry(view: RunView) -> CollectorRegistry:
    """A fresh registry that holds this run and nothing else."""
    fresh = CollectorRegistry(auto_describe=False)
    fresh.register(RunCollector(view))
    return fresh


class RunCollector(Collector):
    """The metrics of `DEFINITIONS` for one stored run."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        values: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for name, labels, value in _samples(self._view):
            # A merged run may hold two answers to one question: the later one counts, since
            # Prometheus refuses a page that has a series twice.
            values[name][labels] = value
        for definition in DEFINITIONS:
            is_counter = definition.name.endswith("_total")
            family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
                definition.name, definition.help, labels=definition.labels
            )
            for labels, value in sorted(values[definition.name].items()):
                family.add_metric(labels, value)
            if family.samples:
                yield family


def target_label_value(request: Request) -> str:
    """`dynamo`, `dynamo:inductor`, `dynamo@nightly`: what else than the mode tells series apart.

    The backend is named where it is not the target's own, the environment where it is not
    the target's home.
    """
    value = request.target.name
    if request.target.backend:
        value += f":{request.target.backend}"
    if not request.target.at_home:
        value += f"@{request.target.environment}"
    return value


def mode_label_value(request: Request) -> str:
    """`eval`, `train`, `eval/dynamic` or `train/dynamic`."""
    return f"{request.target.mode.value}/dynamic" if request.target.dynamic else request.target.mode


def _samples(view: RunView) -> Iterator[Sample]:
    for result in view.results:
        yield from _of_model(result)
        yield from _of_answer(result)
    yield from _by_family(view)
    yield from _of_run(view)


def _of_model(result: Result) -> Iterator[Sample]:
    model = result.request.model
    who = (model.name, model.family)
    identity = (model.revision or "", model.source, model.architecture or "", model.task)
    yield "compilewatch_model_info", (*who, *identity), 1
    if model.downloads is not None:
        yield "compilewatch_model_downloads", who, model.downloads
    if result.parameters is not None:
        yield "compilewatch_model_parameters", who, result.parameters


def _of_answer(result: Result) -> Iterator[Sample]:
    model = result.request.model
    where = (target_label_value(result.request), mode_label_value(result.request))
    asked = (model.name, model.family, *where)
    yield "compilewatch_model_status", (*asked, result.status, result.phase), 1
    by_reason: Counter[str] = Counter()
    for graph_break in result.breaks:
        by_reason[reason_label(graph_break)] += graph_break.occurrences
    for reason, breaks in by_reason.items():
        labels = (model.name, model.family, model.revision or "", reason, *where)
        yield "compile_breaks_total", labels, breaks
    measured: dict[str, float | None] = {
        "compilewatch_graphs": result.graphs,
        "compilewatch_graph_breaks": result.graph_breaks,
        "compilewatch_distinct_graph_breaks": result.distinct_breaks,
        "compilewatch_unattributed_graph_breaks": result.unattributed,
        "compilewatch_ops": result.ops,
        "compilewatch_guards": result.guards,
        "compilewatch_fullgraph_accepted": result.fullgraph.accepted if result.fullgraph else None,
        "compilewatch_peak_memory_bytes": result.peak_memory_bytes,
    }
    yield from ((name, asked, value) for name, value in measured.items() if value is not None)
    for phase, seconds in result.durations.items():
        yield "compilewatch_phase_duration_seconds", (*asked, phase), seconds


def _by_family(view: RunView) -> Iterator[Sample]:
    counts: Counter[tuple[str, ...]] = Counter()
    groups: set[tuple[str, str, str]] = set()
    for result in view.results:
        request = result.request
        group = (request.model.family, target_label_value(request), mode_label_value(request))
        groups.add(group)
        counts[(*group, result.status)] += 1
    yield from (("compilewatch_results", labels, count) for labels, count in counts.items())
    if view.baseline is None:
        return
    # A zero that was measured is shown: an alert needs to see it fall back.
    changes: Counter[tuple[str, ...]] = Counter(
        {(*g, kind): 0 for g in groups for kind in (ChangeKind.REGRESSION, ChangeKind.FIXED)}
    )
    for change in view.changes:
        target = change.target
        named = f"{target.name}:{target.backend}" if target.backend else target.name
        mode = f"{target.mode}/dynamic" if target.dynamic else target.mode
        changes[(change.family, named, mode, change.kind)] += 1
    yield from (("compilewatch_changes", labels, count) for labels, count in changes.items())


def _of_run(view: RunView) -> Iterator[Sample]:
    run = view.run
    measured = {
        "compilewatch_planned_requests": run.planned,
        "compilewatch_coverage_ratio": summary.coverage(view),
        "compilewatch_untestable_ratio": summary.untestable_share(view),
        "compilewatch_reused_ratio": summary.reused_share(view),
        "compilewatch_overhead_ratio": summary.overhead(view),
        "compilewatch_run_duration_seconds": run.wall_seconds,
        "compilewatch_last_start_timestamp_seconds": _timestamp(run.started_at),
        "compilewatch_last_completion_timestamp_seconds": _timestamp(run.finished_at),
    }
    if len(view.results) >= run.planned:
        measured["compilewatch_last_success_timestamp_seconds"] = _timestamp(run.finished_at)
    yield from ((name, (), value) for name, value in measured.items() if value is not None)
    for environment in run.environments:
        labels = (
            run.id,
            run.source,
            run.state,
            environment.name,
            environment.device,
            environment.python,
            environment.torch,
            environment.torch_git,
            environment.transformers or "",
            str(run.harness_version),
        )
        yield "compilewatch_run_info", labels, 1


def _timestamp(time: str | None) -> float | None:
    return datetime.fromisoformat(time).timestamp() if time else None


def metrics_page() -> str:
    """docs/metrics.md, from `DEFINITIONS` and `LABELS`."""
    lines = [
        "# Metrics",
        "",
        "Every run writes `metrics.prom` in the Prometheus text format. A value describes the",
        "run it stands in; nothing accumulates from run to run. A number that was not measured",
        "is not there, which is not zero.",
        "",
        "`compile_breaks_total` has the type counter because of its name, and starts again with",
        "every run: `sum by (model, commit, reason) (compile_breaks_total)` is right, `rate()`",
        "is not. All others are gauges.",
        "",
        "| Metric | Labels | Meaning |",
        "|---|---|---|",
    ]
    for definition in DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in definition.labels)
        lines.append(f"| `{definition.name}` | {labels} | {definition.help} |")
    lines += ["", "## Labels", "", "| Label | Values |", "|---|---|"]
    lines += [f"| `{label}` | {meaning} |" for label, meaning in LABELS.items()]
    return "\n".join(lines) + "\n"


LABELS: dict[str, str] = {
    "model": "`org/model` or a class name, as in the plan",
    "family": "the model family: Transformers' `model_type`",
    "commit": "the model's revision on the Hub, empty for a model without one",
    "reason": "registry id and type (`GB0170 Data-dependent branching`) or a short code",
    "target": "`dynamo`; with `:backend` where one was asked for, `@environment` where it is "
    "not the target's home",
    "mode": "`eval` or `train`, with `/dynamic` for dynamic shapes",
    "status": ", ".join(f"`{status}`" for status in Status),
    "phase": ", ".join(f"`{phase}`" for phase in Phase),
    "kind": ", ".join(f"`{kind}`" for kind in ChangeKind),
}
