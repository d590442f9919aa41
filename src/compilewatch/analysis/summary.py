"""Figures of one run, for tables, reports and metrics: pure functions of a `RunView`.

Models, requests and downloads are three different units. A *request* is a model on a target. A
model counts once whatever the number of targets. The figure of downloads of a library class is
its architecture's, so that it counts once for all classes of a family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from compilewatch import records
from compilewatch.contract import targets

Cause = tuple[str, records.Phase | None]
"""A reason's label and phase."""

Hit = tuple[records.ModelSpec, records.GraphBreak | None]
"""A model that a reason strikes, with the break if it is one."""

MEASURED = (records.Phase.CREATE, records.Phase.INPUTS, records.Phase.EAGER, records.Phase.COMPILE)
"""The phases that overhead is measured against: what a result cannot do without."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason why models do not pass, and each model that it strikes.

    `label` is bounded: a break's, an error's code, or the status. `phase` is None for breaks.
    """

    label: str
    phase: records.Phase | None
    hits: tuple[Hit, ...]

    @property
    def words(self) -> str:
        """`GB0170 Data-dependent branching`, `type_error in compile`."""
        return self.label if self.phase is None else f"{self.label} in {self.phase.value}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The models, each once."""
        return tuple(dict.fromkeys(model.name for model, _ in self.hits))

    @property
    def models(self) -> int:
        return len(self.names)

    @cached_property
    def downloads(self) -> int | None:
        """Those of the models, None where none has a figure."""
        return downloads_of(model for model, _ in self.hits)

    @property
    def breaks(self) -> tuple[records.GraphBreak, ...]:
        return tuple(graph_break for _, graph_break in self.hits if graph_break is not None)

    @property
    def occurrences(self) -> int:
        return sum(graph_break.occurrences for graph_break in self.breaks)

    @cached_property
    def places(self) -> tuple[Reason, ...]:
        """The reason at each of its places (fingerprints), by the number of models."""
        by_place: defaultdict[str, list[Hit]] = defaultdict(list)
        for model, graph_break in self.hits:
            if graph_break is not None:
                by_place[graph_break.fingerprint].append((model, graph_break))
        places = (replace(self, hits=tuple(hits)) for hits in by_place.values())
        return tuple(
            sorted(places, key=lambda p: (-p.models, -p.occurrences, p.breaks[0].file, p.lines))
        )

    @property
    def lines(self) -> list[int]:
        return sorted({graph_break.line for graph_break in self.breaks})


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The headline figures. Shares are between 0 and 1, None where there is nothing to share.

    `planned` counts requests, whatever became of them: `missing` are those without a result, lost,
    damaged or not evaluated yet. `planned_verdicts` are those that are not for a forecast. `passed`
    is how many compile without graph breaks.
    """

    planned: int
    planned_verdicts: int
    passed: int
    verdicts: int
    missing: int
    reused: int
    models: int
    statuses: dict[records.Status, int]
    coverage: float | None
    untestable_share: float | None
    reused_share: float | None
    overhead: float | None


def repositories(view: records.RunView) -> dict[records.Part | None, tuple[int, int, int]]:
    """Repositories of the Hub by what is evaluated of them, whatever their number of components.

    Three numbers each: covered (with a verdict on every part that was not skipped, and on one at
    least), all, and the covered ones with skipped parts. None is the key of those of which nothing
    can be built. Empty for a run without repositories.
    """
    results: defaultdict[str, list[records.Result]] = defaultdict(list)
    for result in view.results:
        repository = result.request.model.repository
        if repository is not None and not result.is_forecast:
            results[repository].append(result)
    counts: dict[records.Part | None, list[int]] = {}
    for members in results.values():
        evaluated = [r for r in members if r.status is not records.Status.SKIPPED]
        part = (evaluated[0].request.model.part or records.Part.WHOLE) if evaluated else None
        covered = bool(evaluated) and all(result.is_verdict for result in evaluated)
        row = counts.setdefault(part, [0, 0, 0])
        row[0] += covered
        row[1] += 1
        row[2] += covered and len(evaluated) < len(members)
    return {
        part: (counts[part][0], counts[part][1], counts[part][2])
        for part in (*records.Part, None)
        if part in counts
    }


def summarise(view: records.RunView) -> Summary:
    """All headline figures of a run."""
    results = view.results
    return Summary(
        planned=planned(view),
        planned_verdicts=planned_verdicts(view),
        passed=sum(r.status is records.Status.PASS for r in results),
        verdicts=sum(r.is_verdict for r in results),
        missing=planned(view) - len(results),
        reused=sum(_is_reused(view, r) for r in results),
        models=len({r.request.model.name for r in results}),
        statuses=status_counts(results),
        coverage=coverage(view),
        untestable_share=untestable_share(view),
        reused_share=reused_share(view),
        overhead=overhead(view),
    )


def planned(view: records.RunView) -> int:
    """Requests of the plan, also those that were lost.

    Never fewer than there are results: a merge of runs of one request may hold both results.
    """
    return max(view.run.planned, len(view.results))


def planned_verdicts(view: records.RunView) -> int:
    """Planned requests without those for a forecast: what verdicts are divided by.

    So that nothing lost counts as fine; where every result is a forecast, the lost ones are, too.
    """
    forecasts = sum(result.is_forecast for result in view.results)
    return 0 if 0 < forecasts == len(view.results) else planned(view) - forecasts


def is_complete(view: records.RunView) -> bool:
    """Whether every request of the plan has a result, those of all shards included."""
    evaluated = len(view.results) >= view.run.planned
    return evaluated and not view.run.missing_shards


def passed_share(view: records.RunView) -> float | None:
    """Requests that compile without graph breaks, divided by those planned for a verdict."""
    total = planned_verdicts(view)
    return sum(r.status is records.Status.PASS for r in view.results) / total if total else None


def coverage(view: records.RunView) -> float | None:
    """Verdicts divided by the requests that are planned for one; None where all are forecasts."""
    total = planned_verdicts(view)
    return sum(r.is_verdict for r in view.results) / total if total else None


def untestable_share(view: records.RunView) -> float | None:
    """Requests without a verdict (failed, skipped, missing), divided by those planned."""
    covered = coverage(view)
    return 1 - covered if covered is not None else None


def reused_share(view: records.RunView) -> float | None:
    """Results of earlier runs, divided by all results."""
    results = view.results
    return sum(_is_reused(view, r) for r in results) / len(results) if results else None


def overhead(view: records.RunView) -> float | None:
    """Wall-clock time times jobs, divided by the time inside children from create to compile.

    None where nothing ran in this run. First attempts that led to a second one count as time
    inside; reused and shared results cost nothing and do not count.
    """
    inside = sum(_inside(r) for r in view.results if r.reused_from is None)
    wall = view.run.wall_seconds
    return wall * view.run.jobs / inside if wall is not None and inside > 0 else None


def status_counts(results: Iterable[records.Result]) -> dict[records.Status, int]:
    """Requests by status, in the order of `Status`, without zeros."""
    counts = Counter(r.status for r in results)
    return {status: counts[status] for status in records.Status if counts[status]}


def by_family(view: records.RunView) -> dict[str, tuple[records.Result, ...]]:
    """Results by model family, most downloaded first, then by the number of models."""
    members: defaultdict[str, list[records.Result]] = defaultdict(list)
    for result in view.results:
        members[result.request.model.family].append(result)

    def rank(family: str) -> tuple[int, int, str]:
        models = [result.request.model for result in members[family]]
        return -(downloads_of(models) or 0), -len({model.name for model in models}), family

    return {family: tuple(members[family]) for family in sorted(members, key=rank)}


def top_reasons(
    results: Iterable[records.Result], *, operators: bool = False
) -> tuple[Reason, ...]:
    """Reasons of graph breaks, by the number of models; errors of the compiler are in `errors`.

    With `operators`, those without a lowering for Neuron instead.
    """
    return _ranked(
        ((records.reason_label(graph_break), None), (result.request.model, graph_break))
        for result in results
        for graph_break in (result.missing_lowerings if operators else result.breaks)
    )


def recompilation_kinds(
    results: Iterable[records.Result],
) -> tuple[tuple[records.RecompilationKind, int, int, int | None], ...]:
    """Why the standard trace compiles again: kind, compilations, models, and their downloads."""
    counts: Counter[records.RecompilationKind] = Counter()
    models: defaultdict[records.RecompilationKind, list[records.ModelSpec]] = defaultdict(list)
    for result in results:
        own = result.recompilations_by(lambda recompilation: recompilation.kind)
        counts += own
        for kind in own:
            models[kind].append(result.request.model)
    return tuple(
        (kind, count, len({model.name for model in models[kind]}), downloads_of(models[kind]))
        for kind, count in counts.most_common()
    )


def reasons_by_target(view: records.RunView) -> dict[str, tuple[Reason, ...]]:
    """Target label -> why models fail on it, by models affected; targets in layer order.

    A target on which nothing failed has none. What was not run is left out. A forecast fails for
    its operators without a lowering.
    """
    by_target: dict[str, list[tuple[Cause, Hit]]] = {
        label: [] for label in targets_in_order(view.results)
    }
    for result in view.results:
        hits, model = by_target[targets.target_label(result.request.target)], result.request.model
        if result.status is records.Status.GRAPH_BREAK:
            hits += (((records.reason_label(b), None), (model, b)) for b in result.breaks)
        elif lacking := result.is_forecast and result.missing_lowerings:
            hits += (((f"no lowering: {b.code}", None), (model, b)) for b in lacking)
        elif _wrong(result):
            code = result.error.code if result.error is not None else result.status.value
            hits.append(((code, result.phase), (model, None)))
    return {label: _ranked(hits) for label, hits in by_target.items()}


def _ranked(hits: Iterable[tuple[Cause, Hit]]) -> tuple[Reason, ...]:
    by_cause: defaultdict[Cause, list[Hit]] = defaultdict(list)
    for cause, hit in hits:
        by_cause[cause].append(hit)
    reasons = (
        Reason(label=label, phase=phase, hits=tuple(members))
        for (label, phase), members in by_cause.items()
    )
    return tuple(sorted(reasons, key=lambda r: (-r.models, -(r.downloads or 0), r.label)))


def errors(view: records.RunView) -> tuple[tuple[str, str, int], ...]:
    """(phase, error code, requests) of everything that ended without a verdict or in an error."""
    fine = {records.Status.PASS, records.Status.GRAPH_BREAK, records.Status.SKIPPED}
    counts = Counter(
        (r.phase.value, r.error.code if r.error is not None else r.status.value)
        for r in view.results
        if r.status not in fine | records.FORECASTS
    )
    return tuple((*key, n) for key, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])))


def slowest(results: Iterable[records.Result], count: int = 10) -> tuple[records.Result, ...]:
    """The results that took longest in this run, attempts included."""
    ran = [r for r in results if r.reused_from is None and r.durations]
    return tuple(sorted(ran, key=lambda r: (-records.spent(r), r.request.model.name))[:count])


def phase_seconds(results: Iterable[records.Result]) -> dict[str, float]:
    """Seconds by phase, in their order, of all that ran in this run, attempts included."""
    total: Counter[str] = Counter()
    for result in results:
        if result.reused_from is None:
            for durations in (result.durations, *(a.durations for a in result.attempts)):
                total.update(durations)
    order = [phase.value for phase in records.Phase]
    return {phase: total[phase] for phase in sorted(total, key=order.index)}


def downloads_of(models: Iterable[records.ModelSpec]) -> int | None:
    """Summed downloads; a figure that models of a family or repository share counts once."""
    figures: dict[tuple[str, str], int] = {}
    for model in models:
        if model.downloads is None:
            continue
        shared = model.source == "library"
        key = ("family", model.family) if shared else ("model", model.repository or model.name)
        figures[key] = max(figures.get(key, 0), model.downloads)
    return sum(figures.values()) if figures else None


def _is_reused(view: records.RunView, result: records.Result) -> bool:
    """Whether an earlier run made it; a result shared within the run names the run itself."""
    own = (None, view.run.id, *view.run.merged_from)
    return result.reused_from not in own


def _inside(result: records.Result) -> float:
    every = [result.durations, *(attempt.durations for attempt in result.attempts)]
    return sum(seconds.get(phase.value, 0.0) for seconds in every for phase in MEASURED)


EAGER = "eager"
"""The layer of the model itself, below all targets."""

LAYERS = (EAGER, *targets.TARGETS)
"""In the order in which a model must pass them: the catalogue has the targets in this order."""


_BEFORE_COMPILING = frozenset(
    {records.Phase.SETUP, records.Phase.CREATE, records.Phase.INPUTS, records.Phase.EAGER}
)


@dataclass(frozen=True, kw_only=True)
class EvaluationMode:
    """How a row was evaluated.

    `environment` is None where each target was in its default one. `device` has a device other than
    the CPU, and a type other than the device's default.
    """

    mode_label: str
    environment: str | None
    device: tuple[str, ...] = ()

    @classmethod
    def of(cls, target: records.Target) -> EvaluationMode:
        away = None if targets.in_default_environment(target) else target.environment
        return cls(
            mode_label=target.mode_label,
            environment=away,
            device=targets.device_parts(target),
        )

    @property
    def label(self) -> str:
        """`eval`, `train/dynamic`, `eval/cuda`, `eval@torch-2.9`."""
        where = f"@{self.environment}" if self.environment else ""
        return "/".join((self.mode_label, *self.device)) + where


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One layer of a row.

    Of the layer eager, `result` is one that ended before its compiler ran, or None where eager mode
    passed: no target's result says that alone.
    """

    layer: str
    failed: bool
    result: records.Result | None = None


@dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One model on one way. `cells` has the layers that were evaluated, eager first."""

    model: records.ModelSpec
    way: EvaluationMode
    cells: tuple[Cell, ...]

    @property
    def disagreements(self) -> tuple[str, ...]:
        """Lines that say where export and compile, or the variants of export, differ."""
        return tuple(_disagreements({c.layer: c.result for c in self.cells if c.result}))

    @property
    def first_failing(self) -> Cell | None:
        return next((cell for cell in self.cells if cell.failed), None)

    def cell(self, layer: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.layer == layer), None)


def target_order(target: records.Target) -> tuple[int, str, tuple[str, ...], bool, str]:
    """Sorts targets by layer, then eval before train, fixed before dynamic, home before away."""
    layer = LAYERS.index(target.name) if target.name in LAYERS else len(LAYERS)
    return (
        layer,
        target.mode_label,
        targets.device_parts(target),
        not targets.in_default_environment(target),
        target.environment,
    )


def targets_in_order(results: Iterable[records.Result]) -> tuple[str, ...]:
    """The labels of all targets evaluated, each once, in the order of the layers."""
    ordered = sorted({result.request.target for result in results}, key=target_order)
    return tuple(dict.fromkeys(map(targets.target_label, ordered)))


def matrix_rows(results: Iterable[records.Result]) -> tuple[MatrixRow, ...]:
    """A row for each model and way, in the order in which the results name them."""
    grouped: defaultdict[tuple[str, EvaluationMode], list[records.Result]] = defaultdict(list)
    for result in results:
        mode = EvaluationMode.of(result.request.target)
        grouped[result.request.model.name, mode].append(result)
    return tuple(_row(way, members) for (_, way), members in grouped.items())


def first_failures(matrix_rows: Iterable[MatrixRow]) -> dict[tuple[EvaluationMode, str], int]:
    """Models by way and first failing layer, in layer order; zero for one that never is it.

    A forecast fails nowhere.
    """
    counts: dict[tuple[EvaluationMode, str], int] = {}
    for row in matrix_rows:
        for cell in row.cells:
            if cell.result is None or not cell.result.is_forecast:
                counts.setdefault((row.way, cell.layer), 0)
        if (first := row.first_failing) is not None:
            counts[(row.way, first.layer)] += 1
    ways = list(dict.fromkeys(way for way, _ in counts))
    order = sorted(counts, key=lambda key: (ways.index(key[0]), LAYERS.index(key[1])))
    return {key: counts[key] for key in order}


def _row(way: EvaluationMode, results: list[records.Result]) -> MatrixRow:
    ordered = sorted(results, key=lambda result: target_order(result.request.target))
    cells = [
        Cell(layer=result.request.target.name, failed=_failed(result), result=result)
        for result in ordered
        if result.request.target.name in LAYERS
    ]
    judged = [result for result in ordered if not result.is_forecast]
    if any(result.status not in records.NOT_RUN for result in judged):
        early = (r for r in judged if _wrong(r) and r.phase in _BEFORE_COMPILING)
        before = next(early, None)
        cells.insert(0, Cell(layer=EAGER, failed=before is not None, result=before))
    return MatrixRow(model=ordered[0].request.model, way=way, cells=tuple(cells))


def _wrong(result: records.Result) -> bool:
    return result.status not in {records.Status.PASS, *records.NOT_RUN, *records.FORECASTS}


def _failed(result: records.Result) -> bool:
    """Whether the target's own layer failed, and not what comes before it."""
    evaluated = result.phase not in _BEFORE_COMPILING and not result.is_forecast
    return evaluated and _wrong(result)


def _disagreements(by_layer: dict[str, records.Result]) -> Iterable[str]:
    dynamo, export = by_layer.get("dynamo"), by_layer.get("export")
    if export is None or not isinstance(export.details, records.ExportDetail):
        return
    detail = export.details
    if dynamo is not None and dynamo.fullgraph is not None and detail.non_strict is not None:
        single, exported = dynamo.fullgraph, detail.non_strict
        note = _unlike(dynamo, export)
        if single.accepted and not exported.exported:
            yield f"fullgraph=True accepts it, torch.export rejects it: {exported.code}{note}"
        elif exported.exported and not single.accepted:
            why = single.code or "no reason given"
            yield f"torch.export exports it, fullgraph=True rejects it: {why}{note}"
    if detail.disagrees and detail.non_strict is not None and detail.strict is not None:
        if detail.non_strict.exported:
            yield f"torch.export exports it, strict=True rejects it: {detail.strict.code}"
        else:
            yield f"torch.export rejects it, strict=True exports it: {detail.non_strict.code}"


def _unlike(dynamo: records.Result, export: records.Result) -> str:
    """What else than the target differs, since that may be the cause."""
    if (dynamo.tier, dynamo.depth) == (export.tier, export.depth):
        return ""
    sides = (f"{r.tier.value} tensors, {r.depth.value} depth" for r in (dynamo, export))
    return f" (evaluated differently: {' and '.join(sides)})"
