"""A model's row of the model × target matrix: what passes, what fails first, what disagrees.

A row is one *way* to evaluate a model: mode, static or dynamic shapes, and environment (each
target's default one, or one for all that is named). Layers stand in the order in which a model
must pass them. What was not evaluated, skipped or is unsupported has neither failed nor passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from compilewatch.analysis.summary import downloads_of
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
    Phase,
    Result,
    RunView,
    Status,
    Target,
    reason_label,
)

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


def rows(results: Iterable[Result]) -> tuple[MatrixRow, ...]:
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
