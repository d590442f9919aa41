"""`metrics.prom`: a run in the Prometheus text format.

Values describe one run and are replaced by the next one; nothing accumulates. All metrics are
gauges but `compile_breaks_total`, which keeps the name that dashboards ask for: promtool accepts
`_total` on counters only, so it is exposed as one, without a `_created` sample. It starts again
with every run: use it as it is, `rate()` and `increase()` mean nothing on it.

What there is stands in `metric_definitions`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compilewatch.analysis import rows, summary
from compilewatch.analysis.reasons import reason_label
from compilewatch.analysis.view import RunView
from compilewatch.records import ChangeKind, Result, Target
from compilewatch.sinks import Write
from compilewatch.sinks.metric_definitions import DEFINITIONS

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


def target_label_value(target: Target) -> str:
    """`dynamo`, `dynamo:inductor`, `dynamo@nightly`: what else than the mode tells series apart.

    The backend is named where it is not the target's own, the environment where it is not
    the target's home.
    """
    value = target.name
    if target.backend:
        value += f":{target.backend}"
    return value if target.at_home else f"{value}@{target.environment}"


def mode_label_value(target: Target) -> str:
    """`eval`, `train`, `eval/dynamic` or `train/dynamic`."""
    return f"{target.mode.value}/dynamic" if target.dynamic else target.mode.value


def _samples(view: RunView) -> Iterator[Sample]:
    for result in view.results:
        yield from _of_model(result)
        yield from _of_answer(result)
    yield from _by_family(view)
    yield from _of_rows(view)
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
    where = (target_label_value(result.request.target), mode_label_value(result.request.target))
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
    yield from _of_compilers(result, asked)


def _of_compilers(result: Result, asked: tuple[str, ...]) -> Iterator[Sample]:
    """What single targets measured."""
    speed, xla, neuron = result.performance, result.xla, result.neuron
    measured: list[tuple[str, tuple[str, ...], float | None]] = []
    spent: dict[str, float | None] = {}
    if speed is not None:
        spent = {"cold": speed.cold_compile_seconds, "warm": speed.warm_compile_seconds}
        measured.append(("compilewatch_speedup_ratio", asked, speed.speedup))
        measured.append(("compilewatch_recompiles", asked, speed.recompiles))
    if xla is not None:
        spent = {"cold": xla.compile_seconds}
        measured.append(("compilewatch_recompiles", asked, xla.recompiles))
        if result.graph_breaks is not None:  # captured, so that no fallback is a fact
            concerns, fallbacks = len(xla.expected_to_fail_on_neuron), sum(xla.fallbacks.values())
            measured.append(("compilewatch_fallbacks", asked, fallbacks))
            measured.append(("compilewatch_expected_to_fail_on_neuron", asked, concerns))
        size = sum(xla.operators.values()) or None
        measured.append(("compilewatch_hlo_instructions", asked, size))
    if neuron is not None:
        spent = {"cold": neuron.compile_seconds}
        measured.append(("compilewatch_neff_bytes", asked, neuron.neff_bytes))
        if neuron.failure is not None:
            measured.append(("compilewatch_neuron_failure", (*asked, neuron.failure.kind), 1))
    measured += (
        ("compilewatch_compiler_duration_seconds", (*asked, cache), seconds)
        for cache, seconds in spent.items()
    )
    yield from ((name, labels, value) for name, labels, value in measured if value is not None)


def _of_rows(view: RunView) -> Iterator[Sample]:
    for (way, layer), models in rows.first_failures(rows.rows(view.results)).items():
        mode = f"{way.mode.value}/dynamic" if way.dynamic else way.mode.value
        labels = (layer.value, mode, way.environment or "")
        yield "compilewatch_first_failing_layer", labels, models


def _by_family(view: RunView) -> Iterator[Sample]:
    counts: Counter[tuple[str, ...]] = Counter()
    groups: set[tuple[str, str, str]] = set()
    for result in view.results:
        request = result.request
        where = (target_label_value(request.target), mode_label_value(request.target))
        group = (request.model.family, *where)
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
        where = (target_label_value(change.target), mode_label_value(change.target))
        changes[(change.family, *where, change.kind)] += 1
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
