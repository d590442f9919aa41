"""The metrics of a run: samples, grouped as the Pushgateway replaces them.

Values describe one run and are replaced by the next one; nothing accumulates. All metrics are
gauges except `compile_breaks_total`, whose name dashboards use: promtool accepts the suffix
`_total` for counters only, so it is exposed as a counter, without a `_created` sample. Its value
starts again with every run: use it directly, because `rate()` and `increase()` have no meaning for
it.

`metric_definitions` lists all metrics.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compilewatch import extras, plugins
from compilewatch.analysis import rows, summary
from compilewatch.analysis.comparison import is_comparable, regressed
from compilewatch.analysis.leverage import models_of_one_reason
from compilewatch.config.settings import Settings
from compilewatch.contract.targets import entry, target_label_value
from compilewatch.records import (
    ChangeKind,
    NeuronDetail,
    Performance,
    Phase,
    Result,
    XlaDetail,
)
from compilewatch.records.clock import started
from compilewatch.records.labels import reason_label, selection_label
from compilewatch.records.views import RunView
from compilewatch.sinks import RunFiles
from compilewatch.sinks.metric_definitions import DEFINITIONS, Definition

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""

REGRESSED_SHOWN = 20
"""Models of a target that have a series because they are worse; all of them are counted."""

Key = tuple[str, ...]
"""The values of a group's labels: (source, target), or (source,) for metrics about the run."""


class MetricsFileSink:
    """Writes `metrics.prom` into the run's folder."""

    name = "metrics_file"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: RunView, files: RunFiles) -> str:
        files.write("metrics.prom", exposition(view))
        return "metrics.prom"


def exposition(view: RunView) -> bytes:
    """Return all groups of the run in the Prometheus text format 0.0.4, UTF-8."""
    samples = (sample for group in groups(view).values() for sample in group)
    return generate_latest(registry(samples, definitions_of(view)))


def definitions_of(view: RunView) -> tuple[Definition, ...]:
    """Return the metrics that a run can have: those of the core and of the extras in it."""
    references = (extras.EXTRAS[name].provides.get("metrics") for name in view.parts)
    return (*DEFINITIONS, *(each for ref in references if ref for each in plugins.load(ref)))


def registry(
    samples: Iterable[Sample], definitions: Sequence[Definition] = DEFINITIONS
) -> CollectorRegistry:
    """Return a new registry that contains exactly these samples, of these metrics."""
    fresh = CollectorRegistry(auto_describe=False)
    fresh.register(SampleCollector(samples, definitions))
    return fresh


def groups(view: RunView) -> dict[Key, list[Sample]]:
    """Return the samples of a run by the Pushgateway group that they belong to.

    Every series is unique: the information about a model occurs once for all modes, and of two
    results of one request, which a merged run may contain, the later one counts.
    """
    source = view.run.source
    complete = summary.is_complete(view)
    found: dict[Key, list[Sample]] = {
        (source, label): _unique((source, label), _of_target(part, complete))
        for label, part in _by_target(view).items()
    }
    found[source,] = _unique((source,), _of_run(view))
    return found


def _unique(key: Key, samples: Iterable[Sample]) -> list[Sample]:
    values = {(name, (*key, *labels)): value for name, labels, value in samples}
    return [(name, labels, value) for (name, labels), value in values.items()]


class SampleCollector(Collector):
    """Exposes samples as the metrics that are defined, in that order."""

    def __init__(self, samples: Iterable[Sample], definitions: Sequence[Definition]) -> None:
        self._samples = tuple(samples)
        self._definitions = definitions

    def collect(self) -> Iterator[Metric]:
        values: dict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        for name, labels, value in self._samples:
            values[name].append((labels, value))
        for definition in self._definitions:
            is_counter = definition.name.endswith("_total")
            family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
                definition.name, definition.help, labels=definition.labels
            )
            for labels, value in sorted(values[definition.name]):
                family.add_metric(labels, value)
            if family.samples:
                yield family


def _by_target(view: RunView) -> dict[str, RunView]:
    """Split the run by target: plan, results, changes and environments of each."""
    results: defaultdict[str, list[Result]] = defaultdict(list)
    # A target without any result is included, with a coverage of 0.
    planned = Counter(target_label_value(target) for target in view.run.targets)
    for label in planned:
        results[label] = []
    for result in view.results:
        results[target_label_value(result.request.target)].append(result)
    models = view.run.planned // len(view.run.targets) if view.run.targets else 0
    parts: dict[str, RunView] = {}
    for label, members in results.items():
        names = {r.request.target.environment for r in members}
        environments = tuple(e for e in view.run.environments if e.name in names)
        parts[label] = replace(
            view,
            run=msgspec.structs.replace(
                view.run, environments=environments, planned=models * planned[label]
            ),
            results=tuple(members),
            changes=tuple(c for c in view.changes if target_label_value(c.target) == label),
        )
    return parts


def _of_target(view: RunView, complete: bool) -> Iterator[Sample]:
    """Yield all samples of one target; `complete` says whether the run is complete."""
    for result in view.results:
        yield from _of_model(result)
        yield from _of_result(result)
    yield from _by_family(view)
    yield from _by_reason(view)
    yield from _totals(view)
    yield from _regressed(view)
    yield from _of_its_run(view, complete)


def _of_model(result: Result) -> Iterator[Sample]:
    model = result.request.model
    who = (model.name, model.family)
    about = (model.revision or "", model.architecture or "", model.task)
    identity = (*about, model.part or "", model.quantization or "")
    yield "compilewatch_model_info", (*who, *identity), 1
    if model.downloads is not None:
        yield "compilewatch_model_downloads", who, model.downloads


def _of_result(result: Result) -> Iterator[Sample]:
    model, target = result.request.model, result.request.target
    mode = target.mode_label
    identity = (model.name, model.family, mode)
    yield "compilewatch_model_status", (*identity, result.status, result.phase), 1
    by_reason: Counter[str] = Counter()
    for graph_break in result.breaks:
        by_reason[reason_label(graph_break)] += graph_break.occurrences
    for reason, breaks in by_reason.items():
        labels = (model.name, model.family, model.revision or "", reason, mode)
        yield "compile_breaks_total", labels, breaks
    measured: dict[str, float | None] = {
        **(_of_broken(result) if result.breaks else {}),
        "compilewatch_ops": result.ops,
        "compilewatch_guards": result.guards,
        "compilewatch_fullgraph_accepted": result.fullgraph.accepted if result.fullgraph else None,
        "compilewatch_peak_memory_bytes": result.peak_memory_bytes,
        **_of_details(result),
    }
    yield from ((name, identity, value) for name, value in measured.items() if value is not None)
    if isinstance(result.details, NeuronDetail) and result.details.failure is not None:
        yield "compilewatch_neuron_failure", (*identity, result.details.failure.kind), 1
    for cache, seconds in _compile_durations(result).items():
        if seconds is not None:
            yield "compilewatch_compile_duration_seconds", (*identity, cache), seconds


def _of_broken(result: Result) -> dict[str, float | None]:
    """Return what needs no series for a single graph: one graph, with every operator in it."""
    found = result.capture
    return {
        "compilewatch_graphs": None
        if entry(result.request.target.name).single_graph
        else result.graphs,
        "compilewatch_captured_ratio": found.share if found is not None else None,
        "compilewatch_eager_operators": found.operators_eager if found is not None else None,
    }


def _of_details(result: Result) -> dict[str, float | None]:
    """Return the measurements that only one target makes."""
    found = result.details
    if isinstance(found, Performance):
        return {
            "compilewatch_speedup_ratio": found.speedup,
            "compilewatch_recompiles": found.recompiles,
        }
    if isinstance(found, XlaDetail):
        concerns = len(found.expected_to_fail_on_neuron)
        # Without a capture it is unknown whether there were fallbacks.
        captured = result.graph_breaks is not None
        return {
            "compilewatch_recompiles": found.recompiles,
            "compilewatch_fallbacks": sum(found.fallbacks.values()) if captured else None,
            "compilewatch_expected_to_fail_on_neuron": concerns if captured else None,
        }
    if isinstance(found, NeuronDetail):
        return {"compilewatch_neff_bytes": found.neff_bytes}
    return {}


def _compile_durations(result: Result) -> dict[str, float | None]:
    """Return times by cache: as the target measured them, or else the phase `compile`."""
    found = result.details
    if isinstance(found, Performance):
        return {"cold": found.cold_compile_seconds, "warm": found.warm_compile_seconds}
    if isinstance(found, XlaDetail | NeuronDetail):
        return {"cold": found.compile_seconds}
    return {"cold": result.durations.get(Phase.COMPILE)}


def _by_family(view: RunView) -> Iterator[Sample]:
    counts: Counter[tuple[str, ...]] = Counter()
    for result in view.results:
        mode = result.request.target.mode_label
        counts[result.request.model.family, mode, result.status] += 1
    yield from (("compilewatch_family_results", labels, count) for labels, count in counts.items())
    changes = Counter((c.family, c.target.mode_label, c.kind) for c in view.changes)
    yield from (("compilewatch_family_changes", labels, n) for labels, n in changes.items())


def _by_reason(view: RunView) -> Iterator[Sample]:
    for mode, results in _by_mode(view).items():
        for reason in summary.top_reasons(replace(view, results=results)):
            yield "compilewatch_reason_models", (reason.label, mode), reason.models
            if reason.downloads is not None:
                yield "compilewatch_reason_downloads", (reason.label, mode), reason.downloads
        for label, (models, downloads) in models_of_one_reason(results).items():
            yield "compilewatch_reason_fixed_models", (label, mode), models
            if downloads is not None:
                yield "compilewatch_reason_fixed_downloads", (label, mode), downloads


def _totals(view: RunView) -> Iterator[Sample]:
    for mode, results in _by_mode(view).items():
        yield "compilewatch_verdicts", (mode,), sum(r.is_verdict for r in results)
        for status, count in summary.status_counts(results).items():
            yield "compilewatch_results", (mode, status), count
            models = [r.request.model for r in results if r.status is status]
            if (downloads := summary.downloads_of(models)) is not None:
                yield "compilewatch_downloads", (mode, status), downloads
        for where, operators in _operators(results).items():
            yield "compilewatch_operators", (mode, where), operators
        unattributed = [r.unattributed for r in results if r.unattributed is not None]
        if unattributed:
            yield "compilewatch_unattributed_graph_breaks", (mode,), sum(unattributed)
        spent: defaultdict[str, float] = defaultdict(float)
        for result in results:
            for phase, seconds in result.durations.items():
                spent[phase] += seconds
        for phase, seconds in spent.items():
            yield "compilewatch_phase_duration_seconds", (mode, phase), seconds
        if view.baseline is not None:
            kinds = Counter(c.kind for c in view.changes if c.target.mode_label == mode)
            # A measured zero is exported, because an alert must see the value fall to it.
            shown = dict.fromkeys((ChangeKind.REGRESSION, ChangeKind.FIXED), 0) | kinds
            for kind, count in shown.items():
                yield "compilewatch_changes", (mode, kind), count


def _regressed(view: RunView) -> Iterator[Sample]:
    found = regressed(view)
    counts = Counter(one.result.request.target.mode_label for one in found)
    for mode, results in _by_mode(view).items():
        if counts[mode] or is_comparable(replace(view, results=results)):
            # A measured zero is exported, because an alert must see the value fall to it.
            yield "compilewatch_regressed_models", (mode,), counts[mode]
    for result, since in found[:REGRESSED_SHOWN]:
        model = result.request.model
        who = (model.name, model.family, result.request.target.mode_label, result.status)
        yield "compilewatch_regressed_since_timestamp_seconds", who, started(since).timestamp()


def _operators(results: Iterable[Result]) -> dict[str, int]:
    """Return the operators of all models by where they ran; nothing where none were counted."""
    counted = [
        (found.operators_captured, found.operators_eager)
        for result in results
        if (found := result.capture) is not None
        and found.operators_captured is not None
        and found.operators_eager is not None
    ]
    if not counted:
        return {}
    return {"captured": sum(c for c, _ in counted), "eager": sum(e for _, e in counted)}


def _by_mode(view: RunView) -> dict[str, tuple[Result, ...]]:
    found: defaultdict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        found[result.request.target.mode_label].append(result)
    return {mode: tuple(results) for mode, results in found.items()}


def _of_its_run(view: RunView, complete: bool) -> Iterator[Sample]:
    """Yield the samples about the part of the run that evaluated this target."""
    run = view.run
    measured = {
        "compilewatch_coverage_ratio": summary.coverage(view),
        "compilewatch_untestable_ratio": summary.untestable_share(view),
        "compilewatch_reused_ratio": summary.reused_share(view),
        "compilewatch_last_start_timestamp_seconds": _timestamp(run.started_at),
        "compilewatch_last_completion_timestamp_seconds": _timestamp(run.finished_at),
    }
    if complete:
        measured["compilewatch_last_success_timestamp_seconds"] = _timestamp(run.finished_at)
    yield from ((name, (), value) for name, value in measured.items() if value is not None)
    for environment in run.environments:
        labels = (
            run.id,
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


def _of_run(view: RunView) -> Iterator[Sample]:
    """Yield the samples about the complete run."""
    run = view.run
    yield "compilewatch_planned_requests", (selection_label(run.settings),), run.planned
    measured = {
        "compilewatch_overhead_ratio": summary.overhead(view),
        "compilewatch_run_duration_seconds": run.wall_seconds,
    }
    yield from ((name, (), value) for name, value in measured.items() if value is not None)
    if (repositories := summary.repositories(view)) is not None:
        for part, (covered, total) in repositories.by_part.items():
            yield "compilewatch_repositories", (part or "", "yes"), covered
            yield "compilewatch_repositories", (part or "", "no"), total - covered
    for (way, layer), models in rows.first_failures(rows.rows(view.results)).items():
        labels = (layer, way.mode_label, way.environment or "")
        yield "compilewatch_first_failing_layer", labels, models
    for name, stored in view.parts.items():
        if reference := extras.EXTRAS[name].provides.get("run_samples"):
            yield from plugins.load(reference)(stored)


def _timestamp(time: str | None) -> float | None:
    return datetime.fromisoformat(time).timestamp() if time else None
