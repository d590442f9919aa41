"""The metrics of a run: a table with each one's name, meaning, labels and value.

Values describe one run and are replaced by the next one; nothing accumulates. All metrics are
gauges except `compile_breaks_total`, whose name dashboards use: promtool accepts the suffix
`_total` for counters only, so it is exposed as a counter, without a `_created` sample. Its value
starts again with every run: use it directly, because `rate()` and `increase()` have no meaning for
it.

docs/metrics.md is generated from the table and from `LABELS`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compilewatch import extras, plugins, records
from compilewatch.analysis import summary
from compilewatch.analysis.comparison import is_comparable, regressed
from compilewatch.analysis.leverage import models_of_one_reason
from compilewatch.analysis.summary import LAYERS
from compilewatch.config import Settings
from compilewatch.contract.targets import entry, target_label_value
from compilewatch.neuron.neuronx_cc import KINDS
from compilewatch.store import RunFolder

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""

Key = tuple[str, ...]
"""The values of a group's labels: (source, target), or (source,) for metrics about the run."""

REGRESSED_SHOWN = 20
"""Models of a target that have a series because they are worse; all of them are counted."""


class MetricGroup(NamedTuple):
    """What a metric describes: with which Pushgateway group it is replaced.

    `labels` are those of the group's grouping key, which come first in every sample.
    """

    name: str
    labels: tuple[str, ...]


TARGET = MetricGroup("target", ("source", "target"))
RUN = MetricGroup("run", ("source",))
PUBLISHER = MetricGroup("publisher", ())


@dataclass(frozen=True)
class RunSlice:
    """The part of a run that a group describes: one target, or all; `complete` is of the run."""

    view: records.RunView
    complete: bool

    @cached_property
    def modes(self) -> dict[str, tuple[records.Result, ...]]:
        """Results by mode."""
        results: defaultdict[str, list[records.Result]] = defaultdict(list)
        for result in self.view.results:
            results[result.request.target.mode_label].append(result)
        return {mode: tuple(members) for mode, members in results.items()}


Series = Iterable[tuple[tuple[str, ...], float | None]]
"""Own label values and value of each series of a metric; None is not exported."""


class Definition(NamedTuple):
    """One metric.

    `help` is the text of `# HELP` and of docs/metrics.md. `own_labels` are the labels that the
    metric has besides those of its group, in the order in which they are written. `values` reads
    its series from a run; a metric of an extra or of publication has none.
    """

    name: str
    help: str
    own_labels: tuple[str, ...] = ()
    group: MetricGroup = TARGET
    values: Callable[[RunSlice], Series] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of a sample: those of the group, then the metric's own."""
        return (*self.group.labels, *self.own_labels)


MODEL = ("model", "family", "mode")


def _identity(result: records.Result) -> tuple[str, str, str]:
    model = result.request.model
    return model.name, model.family, result.request.target.mode_label


def per_result(name: str, help: str, value: Callable[[records.Result], float | None]) -> Definition:
    def values(part: RunSlice) -> Series:
        return ((_identity(result), value(result)) for result in part.view.results)

    return Definition(name, help, MODEL, values=values)


def per_mode(
    name: str, help: str, value: Callable[[Sequence[records.Result]], Any], *label: str
) -> Definition:
    """A number of the results of each mode or, with a further label, one for each of its values."""

    def values(part: RunSlice) -> Series:
        for mode, results in part.modes.items():
            if label:
                yield from (((mode, name), n) for name, n in value(results).items())
            else:
                yield (mode,), value(results)

    return Definition(name, help, ("mode", *label), values=values)


def per_run(
    name: str,
    help: str,
    value: Callable[[records.RunView], float | None],
    group: MetricGroup = TARGET,
) -> Definition:
    return Definition(name, help, group=group, values=lambda part: [((), value(part.view))])


def _detail(name: str) -> Callable[[records.Result], float | None]:
    """A number of the targets whose details have a field of this name."""
    return lambda result: getattr(result.details, name, None)


def _fallbacks(result: records.Result) -> int | None:
    """They are unknown without a capture."""
    counts = getattr(result.details, "fallbacks", None)
    return None if counts is None or result.graph_breaks is None else sum(counts.values())


def _breaks(part: RunSlice) -> Series:
    for result in part.view.results:
        name, family, mode = _identity(result)
        by_reason: Counter[str] = Counter()
        for graph_break in result.breaks:
            by_reason[records.reason_label(graph_break)] += graph_break.occurrences
        for reason, count in by_reason.items():
            yield (name, family, result.request.model.revision or "", reason, mode), count


def _models(part: RunSlice) -> Series:
    for model in (result.request.model for result in part.view.results):
        about = (model.revision or "", model.architecture or "", model.task)
        yield (model.name, model.family, *about, model.part or "", model.quantization or ""), 1


def _graphs(result: records.Result) -> float | None:
    """A single graph needs no series: it is one graph, with every operator in it."""
    if not result.breaks or entry(result.request.target.name).single_graph:
        return None
    return result.graphs


def _compile_durations(part: RunSlice) -> Series:
    """Times by cache: as the target measured them, or else the phase `compile`."""
    for result in part.view.results:
        details, identity = result.details, _identity(result)
        cold = result.durations.get(records.Phase.COMPILE)
        for name in ("compile_seconds", "cold_compile_seconds"):
            cold = getattr(details, name, cold)
        yield (*identity, "cold"), cold
        yield (*identity, "warm"), getattr(details, "warm_compile_seconds", None)


def _neuron_failures(part: RunSlice) -> Series:
    for result in part.view.results:
        if isinstance(result.details, records.NeuronDetail) and result.details.failure is not None:
            yield (*_identity(result), result.details.failure.kind), 1


def _reasons(
    value: Callable[[summary.Reason], float | None], *, operators: bool = False
) -> Callable[[RunSlice], Series]:
    return lambda part: (
        ((reason.label, mode), value(reason))
        for mode, results in part.modes.items()
        for reason in summary.top_reasons(results, operators=operators)
    )


def _fixed_reasons(figure: int) -> Callable[[RunSlice], Series]:
    """Models (0) or their downloads (1) that break for one reason only."""
    return lambda part: (
        ((reason, mode), figures[figure])
        for mode, results in part.modes.items()
        for reason, figures in models_of_one_reason(results).items()
    )


def _downloads(results: Sequence[records.Result]) -> dict[str, float | None]:
    return {
        status: summary.downloads_of([r.request.model for r in results if r.status is status])
        for status in summary.status_counts(results)
    }


def _sum(numbers: Iterable[float | None]) -> float | None:
    """The sum of what was measured; None where nothing was."""
    measured = [number for number in numbers if number is not None]
    return sum(measured) if measured else None


def _added(durations: Iterable[Mapping[str, float]]) -> dict[str, float]:
    spent: defaultdict[str, float] = defaultdict(float)
    for one in durations:
        for name, seconds in one.items():
            spent[name] += seconds
    return spent


def _neuron(results: Sequence[records.Result]) -> list[records.NeuronDetail]:
    return [r.details for r in results if isinstance(r.details, records.NeuronDetail)]


def _graphs_for_neuron(results: Sequence[records.Result]) -> Counter[str]:
    """Graphs by how far they came."""
    return Counter(
        "neff" if graph.neff_bytes else "stablehlo" if graph.stablehlo_bytes else "none"
        for detail in _neuron(results)
        for graph in detail.graphs
    )


def _operators(results: Sequence[records.Result]) -> dict[str, float | None]:
    """The operators of all models by where they ran; None where none were counted."""
    captures = [r.capture for r in results if r.capture is not None]
    counted = [c for c in captures if None not in (c.operators_captured, c.operators_eager)]
    return {
        "captured": _sum(capture.operators_captured for capture in counted),
        "eager": _sum(capture.operators_eager for capture in counted),
    }


def _compilations(part: RunSlice) -> Series:
    for result in part.view.results:
        for dynamic, figures in result.traces.items():
            yield (*_identity(result), dynamic), figures.compilations


def _at_the_limit(results: Sequence[records.Result]) -> Counter[str]:
    """Models at the limit of recompilations; a measured zero where none of those traced is."""
    counts = Counter[str]()
    for result in results:
        for dynamic, figures in result.traces.items():
            counts[dynamic] += figures.limit is not None
    return counts


def _changes(part: RunSlice) -> Series:
    if part.view.baseline is None:
        return
    for mode in part.modes:
        kinds = Counter(c.kind for c in part.view.changes if c.target.mode_label == mode)
        # A measured zero is exported, because an alert must see the value fall to it.
        always = [records.ChangeKind.REGRESSION, records.ChangeKind.FIXED]
        if any(result.traces for result in part.modes[mode]):
            always.append(records.ChangeKind.MORE_COMPILATIONS)
        shown = dict.fromkeys(always, 0) | kinds
        yield from (((mode, kind), count) for kind, count in shown.items())


def _regressed_models(part: RunSlice) -> Series:
    counts = Counter(_identity(one.result)[2] for one in regressed(part.view))
    for mode, results in part.modes.items():
        if counts[mode] or is_comparable(replace(part.view, results=results)):
            # A measured zero is exported, because an alert must see the value fall to it.
            yield (mode,), counts[mode]


_BUILD = ("torch_git", "transformers", "harness_version")


def _environments(part: RunSlice) -> Series:
    run = part.view.run
    for one in run.environments:
        software = (one.python, one.torch, one.torch_git, one.transformers or "")
        labels = (run.id, run.state, one.name, one.device, *software, str(run.harness_version))
        yield labels, 1


def _repositories(part: RunSlice) -> Series:
    for kind, (covered, total, _) in summary.repositories(part.view).items():
        yield (kind or "", "yes"), covered
        yield (kind or "", "no"), total - covered


def _timestamp(time: str | None) -> float | None:
    return datetime.fromisoformat(time).timestamp() if time else None


DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compile_breaks_total",
        "Graph breaks of the latest run by reason; absent for a model without graph breaks.",
        ("model", "family", "commit", "reason", "mode"),
        values=_breaks,
    ),
    Definition(
        "compilewatch_model_status",
        "1 for the status of the model in the latest run and the phase in which it ended.",
        (*MODEL, "status", "phase"),
        values=lambda part: (((*_identity(r), r.status, r.phase), 1) for r in part.view.results),
    ),
    Definition(
        "compilewatch_model_info",
        "Always 1; the labels identify the model. commit is its Hub revision, empty if it has "
        "none.",
        ("model", "family", "commit", "architecture", "task", "part", "quantization"),
        values=_models,
    ),
    Definition(
        "compilewatch_model_downloads",
        "Downloads over 30 days as reported by the source; absent if unknown. The components of a "
        "repository have its figure each.",
        ("model", "family"),
        values=lambda part: (
            ((model.name, model.family), model.downloads)
            for model in (result.request.model for result in part.view.results)
        ),
    ),
    per_result(
        "compilewatch_fullgraph_accepted",
        "1 if torch.compile(fullgraph=True) accepts the model, 0 if it does not.",
        lambda r: r.fullgraph.accepted if r.fullgraph else None,
    ),
    per_result(
        "compilewatch_captured_ratio",
        "Operators of one forward call that ran inside captured graphs, divided by all; only of "
        "models with graph breaks, absent where operators were not counted.",
        lambda r: r.capture.share if r.breaks and r.capture else None,
    ),
    per_result(
        "compilewatch_eager_operators",
        "Operators of one forward call that ran eagerly, outside of captured graphs; only of "
        "models with graph breaks.",
        lambda r: r.capture.operators_eager if r.breaks and r.capture else None,
    ),
    per_result(
        "compilewatch_graphs",
        "Graphs captured from one forward call; absent for a model without graph breaks, which is "
        "a single graph.",
        _graphs,
    ),
    per_result(
        "compilewatch_ops",
        "Operations in all captured graphs; for xla, the number of HLO instructions.",
        lambda r: r.ops,
    ),
    per_result("compilewatch_guards", "Guards of all captured graphs.", lambda r: r.guards),
    Definition(
        "compilewatch_compilations",
        "Graphs compiled for the ten calls of the standard trace; absent for a run without "
        "sweep --shapes, and where the trace has no result.",
        (*MODEL, "dynamic"),
        values=_compilations,
    ),
    per_mode(
        "compilewatch_recompile_limit_models",
        "Models that reach the limit of recompilations in the standard trace, so that a function "
        "of theirs runs in eager mode from then on.",
        _at_the_limit,
        "dynamic",
    ),
    Definition(
        "compilewatch_compile_duration_seconds",
        "Time to compile with empty (cold) or filled (warm) caches. A reused result keeps the "
        "value that was measured when it was evaluated. For inductor, the time includes one run "
        "of the model.",
        (*MODEL, "cache"),
        values=_compile_durations,
    ),
    per_result(
        "compilewatch_peak_memory_bytes",
        "Peak resident memory of the process that evaluated the model.",
        lambda r: r.peak_memory_bytes,
    ),
    per_result(
        "compilewatch_speedup_ratio",
        "Latency in eager mode divided by the latency of the compiled model.",
        _detail("speedup"),
    ),
    per_result(
        "compilewatch_recompiles",
        "Graphs recompiled for inputs with a larger batch.",
        _detail("recompiles"),
    ),
    per_result(
        "compilewatch_fallbacks",
        "Calls of operators that ran outside XLA; 0 if none did.",
        _fallbacks,
    ),
    per_result(
        "compilewatch_neff_bytes",
        "Size of the NEFF, the executable for a NeuronCore.",
        _detail("neff_bytes"),
    ),
    Definition(
        "compilewatch_neuron_failure",
        "1 for the class of the error because of which neuronx-cc produced no NEFF.",
        (*MODEL, "error_class"),
        values=_neuron_failures,
    ),
    Definition(
        "compilewatch_operator_models",
        "Models with an operator that has no lowering for Neuron, and that TorchNeuron is not "
        "known to handle itself. Of a forecast, this is not a verdict.",
        ("operator", "mode"),
        values=_reasons(lambda operator: operator.models, operators=True),
    ),
    Definition(
        "compilewatch_operator_downloads",
        "Downloads over 30 days of these models; absent if unknown.",
        ("operator", "mode"),
        values=_reasons(lambda operator: operator.downloads, operators=True),
    ),
    per_mode(
        "compilewatch_fallback_operator_models",
        "Models of which TorchNeuron ran an operator on the CPU.",
        lambda results: Counter(
            name for one in _neuron(results) for name in one.fallback_operators
        ),
        "operator",
    ),
    per_mode(
        "compilewatch_neuron_graphs",
        "Graphs of all models by how far the compiler for Neuron came.",
        _graphs_for_neuron,
        "reached",
    ),
    per_mode(
        "compilewatch_neuron_stage_duration_seconds",
        "Wall-clock time of a stage of the compiler for Neuron, summed over the graphs of all "
        "models.",
        lambda results: _added(g.seconds for detail in _neuron(results) for g in detail.graphs),
        "stage",
    ),
    Definition(
        "compilewatch_family_results",
        "Results of a family by status; skipped and unsupported do not count as passed.",
        ("family", "mode", "status"),
        values=lambda part: Counter(
            (*_identity(r)[1:], r.status) for r in part.view.results
        ).items(),
    ),
    Definition(
        "compilewatch_family_changes",
        "Differences of a family from the baseline; absent if there are none.",
        ("family", "mode", "kind"),
        values=lambda part: Counter(
            (c.family, c.target.mode_label, c.kind) for c in part.view.changes
        ).items(),
    ),
    Definition(
        "compilewatch_reason_models",
        "Models with a graph break for a reason; a model counts once for each of its reasons.",
        ("reason", "mode"),
        values=_reasons(lambda reason: reason.models),
    ),
    Definition(
        "compilewatch_reason_downloads",
        "Downloads over 30 days of the models with a graph break for a reason; absent if unknown.",
        ("reason", "mode"),
        values=_reasons(lambda reason: reason.downloads),
    ),
    Definition(
        "compilewatch_reason_fixed_models",
        "Models that have a graph break for this reason only: a fix of it leaves them without "
        "graph breaks.",
        ("reason", "mode"),
        values=_fixed_reasons(0),
    ),
    Definition(
        "compilewatch_reason_fixed_downloads",
        "Downloads over 30 days of the models that have a graph break for this reason only; absent "
        "if unknown.",
        ("reason", "mode"),
        values=_fixed_reasons(1),
    ),
    per_mode(
        "compilewatch_results",
        "Results by status; skipped and unsupported do not count as passed.",
        summary.status_counts,
        "status",
    ),
    per_mode(
        "compilewatch_verdicts",
        "Results that are a verdict: pass, graph break, mismatch or compile error.",
        # None where all are forecasts: a share of no verdicts would be no number.
        lambda rs: sum(r.is_verdict for r in rs) if any(not r.is_forecast for r in rs) else None,
    ),
    per_mode(
        "compilewatch_downloads",
        "Downloads over 30 days of the models with a status; absent if unknown.",
        _downloads,
        "status",
    ),
    Definition(
        "compilewatch_changes",
        "Differences from the baseline; absent if the run was not compared with a baseline.",
        ("mode", "kind"),
        values=_changes,
    ),
    Definition(
        "compilewatch_regressed_models",
        "Models that are worse than in their last good state, over the last 20 runs; absent "
        "without an earlier run.",
        ("mode",),
        values=_regressed_models,
    ),
    Definition(
        "compilewatch_regressed_since_timestamp_seconds",
        "When the first run started in which the model was worse than in its last good state; of "
        "the 20 most downloaded such models of a target.",
        (*MODEL, "status"),
        values=lambda part: (
            ((*_identity(result), result.status), records.started(since).timestamp())
            for result, since in regressed(part.view)[:REGRESSED_SHOWN]
        ),
    ),
    per_mode(
        "compilewatch_operators",
        "Operators of one forward call of every model, by where they ran: in captured graphs or "
        "eagerly. Absent for targets that do not count them.",
        _operators,
        "where",
    ),
    per_mode(
        "compilewatch_unattributed_graph_breaks",
        "Graph breaks for which PyTorch gives no reason.",
        lambda rs: _sum(r.unattributed for r in rs),
    ),
    per_mode(
        "compilewatch_phase_duration_seconds",
        "Wall-clock time of a phase, summed over all models. Reused results count with the time "
        "that was measured when they were evaluated.",
        lambda results: _added(result.durations for result in results),
        "phase",
    ),
    per_run(
        "compilewatch_coverage_ratio",
        "Verdicts (pass, graph break, mismatch, compile error) divided by planned requests.",
        summary.coverage,
    ),
    per_run(
        "compilewatch_untestable_ratio",
        "Requests without a verdict (failed, skipped, missing) divided by planned requests.",
        summary.untestable_share,
    ),
    per_run(
        "compilewatch_reused_ratio",
        "Results reused from an earlier run, divided by all results.",
        summary.reused_share,
    ),
    Definition(
        "compilewatch_run_info",
        "Always 1; the labels describe the run and its software. One series per environment.",
        (*("run", "state", "environment", "device", "python", "torch"), *_BUILD),
        values=_environments,
    ),
    per_run(
        "compilewatch_last_start_timestamp_seconds",
        "When the latest run started.",
        lambda view: _timestamp(view.run.started_at),
    ),
    per_run(
        "compilewatch_last_completion_timestamp_seconds",
        "When the latest run ended, complete or not.",
        lambda view: _timestamp(view.run.finished_at),
    ),
    Definition(
        "compilewatch_last_success_timestamp_seconds",
        "When the latest run ended, if it is complete; absent otherwise.",
        values=lambda part: [((), _timestamp(part.view.run.finished_at))] if part.complete else [],
    ),
    Definition(
        "compilewatch_first_failing_layer",
        "Models by the first target (column of the matrix) that they fail on; 0 if a target was "
        "evaluated and is the first to fail for no model.",
        ("layer", "mode", "environment"),
        RUN,
        values=lambda part: (
            ((layer, way.mode_label, way.environment or ""), models)
            for (way, layer), models in summary.first_failures(
                summary.matrix_rows(part.view.results)
            ).items()
        ),
    ),
    Definition(
        "compilewatch_planned_requests",
        "Requests in the plan of the run: models times targets. A run of another selection does "
        "not replace it without pushgateway.replace.",
        ("selection",),
        RUN,
        values=lambda part: [
            ((records.selection_label(part.view.run.settings),), part.view.run.planned)
        ],
    ),
    Definition(
        "compilewatch_repositories",
        "Repositories of the Hub in the run, by the part of them that is evaluated and whether "
        "every evaluated part has a verdict; part is empty where nothing can be built. Absent for "
        "a run without repositories.",
        ("part", "covered"),
        RUN,
        values=_repositories,
    ),
    per_run(
        "compilewatch_overhead_ratio",
        "Wall-clock time times jobs, divided by the time spent inside children.",
        summary.overhead,
        RUN,
    ),
    per_run(
        "compilewatch_run_duration_seconds",
        "Wall-clock time of the run.",
        lambda view: view.run.wall_seconds,
        RUN,
    ),
    Definition(
        "compilewatch_spooled_publications",
        "Runs that wait to be published because a sink was unavailable or rejected them.",
        ("sink",),
        PUBLISHER,
    ),
    Definition(
        "compilewatch_failed_publications",
        "Runs that the last publication could not deliver to a sink.",
        ("sink",),
        PUBLISHER,
    ),
    Definition(
        "compilewatch_last_publication_timestamp_seconds",
        "When a sink last accepted a run; absent if it never did.",
        ("sink",),
        PUBLISHER,
    ),
)


def all_definitions(names: Iterable[str] = extras.METRICS) -> tuple[Definition, ...]:
    """Return the metrics of the core, then those of extras, of all by default."""
    loaded = (plugins.load(f"{extras.METRICS[name]}:DEFINITIONS") for name in names)
    return (*DEFINITIONS, *(definition for definitions in loaded for definition in definitions))


class MetricsFileSink:
    """Writes `metrics.prom` into the run's folder."""

    name = "metrics_file"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: records.RunView, files: RunFolder) -> str:
        files.write("metrics.prom", exposition(view))
        return "metrics.prom"


def exposition(view: records.RunView) -> bytes:
    """Return all groups of the run in the Prometheus text format 0.0.4, UTF-8."""
    samples = (sample for group in groups(view).values() for sample in group)
    return generate_latest(registry(samples, all_definitions(view.parts)))


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def registry(
    samples: Iterable[Sample], definitions: Sequence[Definition] = DEFINITIONS
) -> CollectorRegistry:
    """Return a new registry that contains exactly these samples, of these metrics in this order."""
    values: dict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    for name, labels, value in samples:
        values[name].append((labels, value))
    families: list[Metric] = []
    for one in definitions:
        kind = CounterMetricFamily if one.name.endswith("_total") else GaugeMetricFamily
        family = kind(one.name, one.help, labels=one.labels)
        for labels, value in sorted(values[one.name]):
            family.add_metric(labels, value)
        families += [family] if family.samples else []
    fresh = CollectorRegistry(auto_describe=False)
    fresh.register(_Families(families))
    return fresh


def groups(view: records.RunView) -> dict[Key, list[Sample]]:
    """Return the samples of a run by the Pushgateway group that they belong to.

    Every series is unique: the information about a model occurs once for all modes, and of two
    results of one request, which a merged run may contain, the later one counts.
    """
    source, complete = view.run.source, summary.is_complete(view)
    samples: dict[Key, list[Sample]] = {
        (source, label): _samples((source, label), TARGET, RunSlice(part, complete))
        for label, part in _by_target(view).items()
    }
    samples[source,] = _samples((source,), RUN, RunSlice(view, complete))
    return samples


def _samples(key: Key, group: MetricGroup, part: RunSlice) -> list[Sample]:
    values = {
        (definition.name, (*key, *labels)): value
        for definition in DEFINITIONS
        if definition.group is group and definition.values is not None
        for labels, value in definition.values(part)
        if value is not None
    }
    if group is RUN:
        for name, stored in part.view.parts.items():
            samples = plugins.load(f"{extras.METRICS[name]}:samples")(stored)
            values |= {(name, (*key, *labels)): value for name, labels, value in samples}
    return [(name, labels, value) for (name, labels), value in values.items()]


def _by_target(view: records.RunView) -> dict[str, records.RunView]:
    """Split the run by target: plan, results, changes and environments of each."""
    # A target without any result is included, with a coverage of 0.
    planned = Counter(target_label_value(target) for target in view.run.targets)
    results: dict[str, list[records.Result]] = {label: [] for label in planned}
    for result in view.results:
        results.setdefault(target_label_value(result.request.target), []).append(result)
    models = view.run.planned // len(view.run.targets) if view.run.targets else 0
    parts: dict[str, records.RunView] = {}
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


LABELS: dict[str, str] = {
    "source": "where the models came from: `library`, `hub`, `manifest`",
    "model": "`org/model` or a class name, as in the plan",
    "family": "the model family: Transformers' `model_type`",
    "commit": "the model's revision on the Hub, empty for a model without one",
    "part": "the part of a Hub repository: "
    + ", ".join(f"`{part}`" for part in records.Part)
    + "; empty for a model of another source",
    "quantization": "how the checkpoint is quantised: "
    + ", ".join(f"`{kind}`" for kind in records.Quantization)
    + "; empty if it is not. Without its weights, the class is evaluated unquantised",
    "covered": "`yes` (a verdict on every evaluated part) or `no`",
    "reason": "the break's ID and type in PyTorch's registry (`GB0170 Data-dependent branching`), "
    "or a short code",
    "target": "a target such as `dynamo`; followed by `:backend` if a backend was selected, and by "
    "`@environment` if it is not the target's default environment",
    "mode": "`eval` or `train`, with `/dynamic` for dynamic shapes",
    "status": ", ".join(f"`{status}`" for status in records.Status),
    "phase": ", ".join(f"`{phase}`" for phase in records.Phase),
    "sink": "`pushgateway`, `loki`, `s3`",
    "selection": "which models the run selects, with a digest: `default`, `top 100`, `2 by name`",
    "kind": ", ".join(f"`{kind}`" for kind in records.ChangeKind),
    "cache": "`cold` or `warm`",
    "dynamic": "the argument of `torch.compile`: `default` (as called without it) or `true`",
    "operator": "PyTorch's name of the operator, such as `aten.histc.default`",
    "reached": "`neff` (an executable), `stablehlo` (lowered) or `none`",
    "stage": "`passes` (over the FX graph), `lower` (to StableHLO) or `compile` (to a NEFF)",
    "where": "`captured` (inside a graph) or `eager`",
    "error_class": "the class of a compiler error: "
    + ", ".join(f"`{kind}`" for kind in sorted(KINDS)),
    "layer": ", ".join(f"`{layer}`" for layer in LAYERS),
    "environment": "the name of the environment; in `compilewatch_first_failing_layer`, empty if "
    "each target ran in its default environment",
}


def all_labels() -> dict[str, str]:
    """Return the labels of the core's metrics and of those of the extras, with their values."""
    labels = dict(LABELS)
    for module in extras.METRICS.values():
        labels |= plugins.load(f"{module}:LABELS")
    return labels
