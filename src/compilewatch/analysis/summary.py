"""Figures of one run, for tables, reports and metrics: pure functions of a `RunView`.

Models, requests and downloads are three different units. A *request* is a model on a target. A
model counts once whatever the number of targets. The figure of downloads of a library class is
its architecture's, so that it counts once for all classes of a family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compilewatch.contract.targets import (
    TARGETS,
    device_parts,
    in_default_environment,
    target_label,
)
from compilewatch.records import (
    NOT_RUN,
    ExportDetail,
    ModelSpec,
    Part,
    Phase,
    Result,
    RunView,
    Status,
    Target,
    reason_label,
    spent,
)

MEASURED = (Phase.CREATE, Phase.INPUTS, Phase.EAGER, Phase.COMPILE)
"""The phases that overhead is measured against: what a result cannot do without."""


@dataclass(frozen=True, kw_only=True)
class VerdictGroup:
    """Verdicts of a family. `downloads` is None where no model of it has a figure."""

    name: str
    models: int
    requests: int
    statuses: dict[Status, int]
    downloads: int | None


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One cause of graph breaks over all models.

    `label` is bounded; `example` is one full reason of torch's. `downloads` are of the models
    affected, None where none has a figure.
    """

    label: str
    gb_id: str | None
    gb_type: str | None
    example: str
    models: int
    families: int
    distinct: int
    occurrences: int
    downloads: int | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The headline figures. Shares are between 0 and 1, None where there is nothing to share.

    `planned` counts requests, whatever became of them: `missing` are those without a result, lost,
    damaged or not evaluated yet. `passed` is how many compile without graph breaks.
    """

    planned: int
    passed: int
    verdicts: int
    skipped: int
    missing: int
    reused: int
    models: int
    statuses: dict[Status, int]
    fullgraph_accepted: int
    fullgraph_judged: int
    expected: int
    coverage: float | None
    untestable_share: float | None
    reused_share: float | None
    overhead: float | None


@dataclass(frozen=True, kw_only=True)
class Repositories:
    """How many repositories of the Hub a run has results of.

    `covered` are those with a verdict on every part that was not skipped, and on one at least;
    `partly` are those of them with skipped parts. `by_part` has covered and all repositories by
    what is evaluated of them; None is the key of those of which nothing can be built.
    """

    total: int
    covered: int
    partly: int
    by_part: dict[Part | None, tuple[int, int]]


def repositories(view: RunView) -> Repositories | None:
    """Coverage by repository, whatever the number of its components; None without repositories."""
    results: defaultdict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        if (repository := result.request.model.repository) is not None:
            results[repository].append(result)
    if not results:
        return None
    partly = 0
    total: Counter[Part | None] = Counter()
    covered: Counter[Part | None] = Counter()
    for members in results.values():
        evaluated = [result for result in members if result.status is not Status.SKIPPED]
        part = (evaluated[0].request.model.part or Part.WHOLE) if evaluated else None
        total[part] += 1
        if evaluated and all(result.is_verdict for result in evaluated):
            covered[part] += 1
            partly += len(evaluated) < len(members)
    return Repositories(
        total=total.total(),
        covered=covered.total(),
        partly=partly,
        by_part={part: (covered[part], total[part]) for part in (*Part, None) if total[part]},
    )


def summarise(view: RunView) -> Summary:
    """All headline figures of a run."""
    results = view.results
    judged = [r.fullgraph.accepted for r in results if r.fullgraph is not None]
    return Summary(
        planned=planned(view),
        passed=sum(r.status is Status.PASS for r in results),
        verdicts=sum(r.is_verdict for r in results),
        skipped=sum(r.status is Status.SKIPPED for r in results),
        missing=planned(view) - len(results),
        reused=sum(_is_reused(view, r) for r in results),
        models=len({r.request.model.name for r in results}),
        statuses=status_counts(results),
        fullgraph_accepted=sum(judged),
        fullgraph_judged=len(judged),
        expected=sum(r.expectation is not None for r in results),
        coverage=coverage(view),
        untestable_share=untestable_share(view),
        reused_share=reused_share(view),
        overhead=overhead(view),
    )


def planned(view: RunView) -> int:
    """Requests of the plan: the denominator of every share, so that nothing lost counts as fine.

    Never fewer than there are results: a merge of runs of one request may hold both results.
    """
    return max(view.run.planned, len(view.results))


def is_complete(view: RunView) -> bool:
    """Whether every request of the plan has a result, those of all shards included."""
    evaluated = len(view.results) >= view.run.planned
    return evaluated and not view.run.missing_shards


def passed_share(view: RunView) -> float | None:
    """Requests that compile without graph breaks, divided by those planned."""
    total = planned(view)
    return sum(r.status is Status.PASS for r in view.results) / total if total else None


def coverage(view: RunView) -> float | None:
    """Verdicts divided by planned requests."""
    total = planned(view)
    return sum(r.is_verdict for r in view.results) / total if total else None


def untestable_share(view: RunView) -> float | None:
    """Requests without a verdict (failed, skipped, missing), divided by those planned."""
    covered = coverage(view)
    return 1 - covered if covered is not None else None


def reused_share(view: RunView) -> float | None:
    """Results of earlier runs, divided by all results."""
    results = view.results
    return sum(_is_reused(view, r) for r in results) / len(results) if results else None


def overhead(view: RunView) -> float | None:
    """Wall-clock time times jobs, divided by the time inside children from create to compile.

    None where nothing ran in this run. First attempts that led to a second one count as time
    inside; reused and shared results cost nothing and do not count.
    """
    inside = sum(_inside(r) for r in view.results if r.reused_from is None)
    wall = view.run.wall_seconds
    return wall * view.run.jobs / inside if wall is not None and inside > 0 else None


def status_counts(results: Iterable[Result]) -> dict[Status, int]:
    """Requests by status, in the order of `Status`, without zeros."""
    counts = Counter(r.status for r in results)
    return {status: counts[status] for status in Status if counts[status]}


def by_family(view: RunView) -> tuple[VerdictGroup, ...]:
    """Verdicts by model family, most downloaded first."""
    members: defaultdict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        members[result.request.model.family].append(result)
    groups = [
        VerdictGroup(
            name=family,
            models=len({r.request.model.name for r in group}),
            requests=len(group),
            statuses=status_counts(group),
            downloads=downloads_of(r.request.model for r in group),
        )
        for family, group in members.items()
    ]
    return tuple(sorted(groups, key=lambda g: (-(g.downloads or 0), -g.models, g.name)))


def top_reasons(view: RunView) -> tuple[Reason, ...]:
    """Causes of graph breaks, by the number of models; errors of the compiler are in `errors`."""
    by_label: defaultdict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        for label in {reason_label(b) for b in result.breaks}:
            by_label[label].append(result)
    reasons = [_reason(label, results) for label, results in by_label.items()]
    return tuple(sorted(reasons, key=lambda r: (-r.models, -(r.downloads or 0), r.label)))


def errors(view: RunView) -> tuple[tuple[str, str, int], ...]:
    """(phase, error code, requests) of everything that ended without a verdict or in an error."""
    counts = Counter(
        (r.phase.value, r.error.code if r.error is not None else r.status.value)
        for r in view.results
        if r.status not in (Status.PASS, Status.GRAPH_BREAK, Status.SKIPPED)
    )
    return tuple((*key, n) for key, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])))


def slowest(view: RunView, count: int = 10) -> tuple[Result, ...]:
    """The results that took longest in this run, attempts included."""
    ran = [r for r in view.results if r.reused_from is None and r.durations]
    return tuple(sorted(ran, key=lambda r: (-spent(r), r.request.model.name))[:count])


def phase_seconds(view: RunView) -> dict[str, float]:
    """Seconds by phase, in their order, of all that ran in this run, attempts included."""
    total: Counter[str] = Counter()
    for result in view.results:
        if result.reused_from is None:
            for durations in (result.durations, *(a.durations for a in result.attempts)):
                total.update(durations)
    order = [phase.value for phase in Phase]
    return {phase: total[phase] for phase in sorted(total, key=order.index)}


def downloads_of(models: Iterable[ModelSpec]) -> int | None:
    """Summed downloads; a figure that models of a family or repository share counts once."""
    figures: dict[tuple[str, str], int] = {}
    for model in models:
        if model.downloads is None:
            continue
        shared = model.source == "library"
        key = ("family", model.family) if shared else ("model", model.repository or model.name)
        figures[key] = max(figures.get(key, 0), model.downloads)
    return sum(figures.values()) if figures else None


def _reason(label: str, results: Sequence[Result]) -> Reason:
    breaks = [b for r in results for b in r.breaks if reason_label(b) == label]
    models = [r.request.model for r in results]
    return Reason(
        label=label,
        gb_id=breaks[0].gb_id,
        gb_type=breaks[0].gb_type,
        example=breaks[0].reason,
        models=len({m.name for m in models}),
        families=len({m.family for m in models}),
        distinct=len({b.fingerprint for b in breaks}),
        occurrences=sum(b.occurrences for b in breaks),
        downloads=downloads_of(models),
    )


def _is_reused(view: RunView, result: Result) -> bool:
    """Whether an earlier run made it; a result shared within the run names the run itself."""
    own = (None, view.run.id, *view.run.merged_from)
    return result.reused_from not in own


def _inside(result: Result) -> float:
    every = [result.durations, *(attempt.durations for attempt in result.attempts)]
    return sum(seconds.get(phase.value, 0.0) for seconds in every for phase in MEASURED)


EAGER = "eager"
"""The layer of the model itself, below all targets."""

LAYERS = (EAGER, *TARGETS)
"""In the order in which a model must pass them: the catalogue has the targets in this order."""


_BEFORE_COMPILING = frozenset({Phase.SETUP, Phase.CREATE, Phase.INPUTS, Phase.EAGER})


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a row was evaluated.

    `environment` is None where each target was in its default one. `device` has a device other than
    the CPU, and a type other than the device's default.
    """

    mode_label: str
    environment: str | None
    device: tuple[str, ...] = ()

    @classmethod
    def of(cls, target: Target) -> Way:
        away = None if in_default_environment(target) else target.environment
        return cls(
            mode_label=target.mode_label,
            environment=away,
            device=device_parts(target),
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
    result: Result | None = None


@dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One model on one way. `cells` has the layers that were evaluated, eager first.

    `disagreements` are lines that say where export and compile, or the variants of export, differ.
    """

    model: ModelSpec
    way: Way
    cells: tuple[Cell, ...]
    disagreements: tuple[str, ...]

    @property
    def first_failing(self) -> Cell | None:
        return next((cell for cell in self.cells if cell.failed), None)

    def cell(self, layer: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.layer == layer), None)


@dataclass(frozen=True, kw_only=True)
class TargetReason:
    """One cause of failure on one target: a break's label, an error's code, or the status.

    `phase` is None for breaks, `downloads` (of the models affected) where none has a figure.
    """

    label: str
    phase: Phase | None
    models: int
    downloads: int | None

    @property
    def words(self) -> str:
        """`GB0170 Data-dependent branching`, `type_error in compile`."""
        return self.label if self.phase is None else f"{self.label} in {self.phase.value}"


def target_order(target: Target) -> tuple[int, str, tuple[str, ...], bool, str]:
    """Sorts targets by layer, then eval before train, fixed before dynamic, home before away."""
    layer = LAYERS.index(target.name) if target.name in LAYERS else len(LAYERS)
    return (
        layer,
        target.mode_label,
        device_parts(target),
        not in_default_environment(target),
        target.environment,
    )


def targets_in_order(results: Iterable[Result]) -> tuple[str, ...]:
    """The labels of all targets evaluated, each once, in the order of the layers."""
    targets = sorted({result.request.target for result in results}, key=target_order)
    return tuple(dict.fromkeys(target_label(target) for target in targets))


def matrix_rows(results: Iterable[Result]) -> tuple[MatrixRow, ...]:
    """A row for each model and way, in the order in which the results name them."""
    grouped: defaultdict[tuple[str, Way], list[Result]] = defaultdict(list)
    for result in results:
        grouped[(result.request.model.name, Way.of(result.request.target))].append(result)
    return tuple(_row(way, members) for (_, way), members in grouped.items())


def first_failures(matrix_rows: Iterable[MatrixRow]) -> dict[tuple[Way, str], int]:
    """Models by way and first failing layer, in layer order; zero for one that never is it."""
    counts: dict[tuple[Way, str], int] = {}
    for row in matrix_rows:
        for cell in row.cells:
            counts.setdefault((row.way, cell.layer), 0)
        if (first := row.first_failing) is not None:
            counts[(row.way, first.layer)] += 1
    ways = list(dict.fromkeys(way for way, _ in counts))
    order = sorted(counts, key=lambda key: (ways.index(key[0]), LAYERS.index(key[1])))
    return {key: counts[key] for key in order}


def reasons_by_target(view: RunView) -> dict[str, tuple[TargetReason, ...]]:
    """Target label -> why models fail on it, by models affected; targets in layer order.

    A target on which nothing failed has none. What was not run is left out.
    """
    affected: dict[str, defaultdict[tuple[str, Phase | None], list[ModelSpec]]] = {
        label: defaultdict(list) for label in targets_in_order(view.results)
    }
    for result in view.results:
        for cause in _causes(result):
            affected[target_label(result.request.target)][cause].append(result.request.model)
    return {label: _ranked(causes) for label, causes in affected.items()}


def _ranked(
    causes: dict[tuple[str, Phase | None], list[ModelSpec]],
) -> tuple[TargetReason, ...]:
    reasons = (
        TargetReason(
            label=label,
            phase=phase,
            models=len({model.name for model in models}),
            downloads=downloads_of(models),
        )
        for (label, phase), models in causes.items()
    )
    return tuple(sorted(reasons, key=lambda r: (-r.models, -(r.downloads or 0), r.label)))


def _causes(result: Result) -> set[tuple[str, Phase | None]]:
    if not _wrong(result):
        return set()
    if result.status is Status.GRAPH_BREAK:
        return {(reason_label(graph_break), None) for graph_break in result.breaks}
    code = result.error.code if result.error is not None else result.status.value
    return {(code, result.phase)}


def _row(way: Way, results: list[Result]) -> MatrixRow:
    ordered = sorted(results, key=lambda result: target_order(result.request.target))
    cells = [
        Cell(layer=result.request.target.name, failed=_failed(result), result=result)
        for result in ordered
        if result.request.target.name in LAYERS
    ]
    if any(result.status not in NOT_RUN for result in ordered):
        before = next((result for result in ordered if _ended_before_compiling(result)), None)
        cells.insert(0, Cell(layer=EAGER, failed=before is not None, result=before))
    return MatrixRow(
        model=ordered[0].request.model,
        way=way,
        cells=tuple(cells),
        disagreements=tuple(_disagreements(ordered)),
    )


def _wrong(result: Result) -> bool:
    return result.status is not Status.PASS and result.status not in NOT_RUN


def _ended_before_compiling(result: Result) -> bool:
    """An error, timeout, crash or lack of memory before the compiler ran."""
    return _wrong(result) and result.phase in _BEFORE_COMPILING


def _failed(result: Result) -> bool:
    """Whether the target's own layer failed, and not what comes before it."""
    return _wrong(result) and result.phase not in _BEFORE_COMPILING


def _disagreements(results: Iterable[Result]) -> Iterable[str]:
    by_name = {result.request.target.name: result for result in results}
    dynamo, export = by_name.get("dynamo"), by_name.get("export")
    if export is None or not isinstance(export.details, ExportDetail):
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


def _unlike(dynamo: Result, export: Result) -> str:
    """What else than the target differs, since that may be the cause."""
    if (dynamo.tier, dynamo.depth) == (export.tier, export.depth):
        return ""
    sides = (f"{r.tier.value} tensors, {r.depth.value} depth" for r in (dynamo, export))
    return f" (evaluated differently: {' and '.join(sides)})"
