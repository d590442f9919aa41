"""What the pages of the report show: a run grouped by model, reason and family, with page names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from compilewatch.analysis import rows, summary
from compilewatch.analysis.comparison import changed_breaks
from compilewatch.analysis.leverage import By, Leverage, leverage
from compilewatch.analysis.rows import Cell, MatrixRow, TargetReason, Way
from compilewatch.analysis.verified_fixes import VerifiedFixes, verified_fixes
from compilewatch.contract.targets import target_label
from compilewatch.records import (
    Change,
    ChangeKind,
    Environment,
    ErrorRecord,
    GraphBreak,
    ModelSpec,
    Result,
    StackFrame,
    Target,
)
from compilewatch.records.labels import reason_label, source_lines
from compilewatch.records.results import spent
from compilewatch.records.views import Earlier, ModelFix, RunView
from compilewatch.report import wording
from compilewatch.report.wording import ResultGroup, outcome, why

CHARTED_FAMILIES = 18

FIXES_SHOWN = 10
"""Steps of what to fix first; `compilewatch leverage` lists more."""

TREND_RUNS = 3
"""Fewer runs than these are no trend."""


@dataclass(frozen=True, kw_only=True)
class ReportPlace:
    """Where a reason strikes: one fingerprint, in all models that run this code."""

    file: str
    function: str
    lines: tuple[int, ...]
    occurrences: int
    models: int


@dataclass(frozen=True, kw_only=True)
class ReasonPage:
    """One cause of graph breaks over all models; `sample` is one of its breaks."""

    figures: summary.Reason
    page: str
    sample: GraphBreak
    models: tuple[ModelPage, ...]
    places: tuple[ReportPlace, ...]

    @property
    def title(self) -> str:
        return reason_label(self.sample, short=True)

    @property
    def code(self) -> str:
        return self.sample.code


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Results that failed alike: a code of an error, or the status where there is none."""

    outcome: ResultGroup
    code: str
    phases: tuple[str, ...]
    sample: Result
    models: tuple[ModelPage, ...]


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A run as its report shows it."""

    view: RunView
    models: tuple[ModelPage, ...]
    reasons: tuple[ReasonPage, ...]

    @classmethod
    def of(cls, view: RunView) -> RunReport:
        models = tuple(model_pages(view))
        return cls(view=view, models=models, reasons=tuple(_reasons(view, models)))

    @cached_property
    def targets(self) -> tuple[str, ...]:
        return rows.targets_in_order(self.view.results)

    @cached_property
    def rows(self) -> tuple[MatrixRow, ...]:
        return tuple(row for model in self.models for row in model.rows)

    @cached_property
    def first_failures(self) -> dict[tuple[Way, str], int]:
        return rows.first_failures(self.rows)

    @cached_property
    def target_reasons(self) -> dict[str, tuple[TargetReason, ...]]:
        return rows.reasons_by_target(self.view)

    @cached_property
    def by_target(self) -> dict[str, Counter[ResultGroup]]:
        """Results by outcome on each target, in the order of the layers."""
        counts = {label: Counter[ResultGroup]() for label in self.targets}
        for result in self.view.results:
            counts[target_label(result.request.target)][outcome(result)] += 1
        return counts

    @cached_property
    def counts(self) -> Counter[ResultGroup]:
        """Results by outcome."""
        return Counter(outcome(result) for result in self.view.results)

    @cached_property
    def families(self) -> dict[str, tuple[ModelPage, ...]]:
        """Models by family, the most downloaded family first."""
        grouped: dict[str, list[ModelPage]] = defaultdict(list)
        for model in self.models:
            grouped[model.spec.family].append(model)
        order = [group.name for group in summary.by_family(self.view)]
        return {name: tuple(grouped[name]) for name in order}

    @cached_property
    def sections(self) -> dict[ResultGroup, tuple[ModelPage, ...]]:
        """Models under the worst of their outcomes, the most downloaded first."""
        return {
            kind: found
            for kind in WORST_FIRST
            if (found := tuple(model for model in self.models if model.worst is kind))
        }

    @cached_property
    def page_of(self) -> dict[str, str]:
        """Model name -> page; a model that is only in the baseline has none."""
        return {model.spec.name: model.page for model in self.models}

    @cached_property
    def _reason_pages(self) -> dict[str, str]:
        return {reason.figures.label: reason.page for reason in self.reasons}

    def reason_page(self, graph_break: GraphBreak) -> str:
        return self._reason_pages[reason_label(graph_break)]

    @cached_property
    def figures(self) -> summary.Summary:
        return summary.summarise(self.view)

    @property
    def own_runs(self) -> tuple[str | None, ...]:
        """What `reused_from` says where this run, or a shard of it, made the result.

        Two models of one configuration are evaluated once, and the other's result names this run.
        """
        return (None, self.view.run.id, *self.view.run.merged_from)

    @property
    def headline(self) -> str:
        return wording.headline(self.view)

    @property
    def passed_share(self) -> float | None:
        """Of all planned requests: what failed or did not run is no pass."""
        return summary.passed_share(self.view)

    @cached_property
    def changes(self) -> dict[ChangeKind, tuple[Change, ...]]:
        return {
            kind: tuple(
                sorted(
                    (change for change in self.view.changes if change.kind is kind),
                    key=lambda change: (-(change.downloads or 0), change.model),
                )
            )
            for kind in ChangeKind
        }

    @cached_property
    def failures(self) -> tuple[FailureGroup, ...]:
        """Compile errors first, then what got no verdict and what was not run, by frequency."""
        return tuple(_failures(self.models))

    @cached_property
    def leverage(self) -> tuple[Leverage, ...]:
        """What to fix first, by line and by id; empty where no model has a graph break."""
        ranked = (leverage(self.view.results, by=by, top=FIXES_SHOWN) for by in By)
        return tuple(found for found in ranked if found.fixes)

    def verified(self, found: Leverage) -> VerifiedFixes | None:
        """What is verified of the steps of a table; None where no fixes were searched."""
        return verified_fixes(found, self.view.results, self.view.fixes)

    def fix_of(self, result: Result) -> ModelFix | None:
        """What was found against the graph breaks of a result; None where nothing was searched."""
        return self._fixes.get((result.request.model.name, result.request.target))

    @cached_property
    def _fixes(self) -> dict[tuple[str, Target], ModelFix]:
        return {(each.model, each.target): each for each in self.view.fixes}

    @cached_property
    def phase_seconds(self) -> dict[str, float]:
        """Time in each phase, in their order, of all results that this run made itself."""
        return summary.phase_seconds(self.view)

    @cached_property
    def has_trend(self) -> bool:
        return len(self.view.trend) >= TREND_RUNS

    @cached_property
    def charted_families(self) -> tuple[tuple[str, Counter[ResultGroup]], ...]:
        """Results by outcome of the families that pass least, then of the most downloaded.

        None where no family has several results: a chart of single results says nothing.
        """
        counts = [(name, family_counts(models)) for name, models in self.families.items()]
        if all(found.total() == 1 for _, found in counts):
            return ()
        counts.sort(key=lambda each: each[1][ResultGroup.PASS] / each[1].total())
        return tuple(counts[:CHARTED_FAMILIES])

    @cached_property
    def _environments(self) -> dict[str, Environment]:
        return {each.name: each for each in self.view.run.environments}

    def source_page(self, place: GraphBreak | StackFrame | ErrorRecord, target: Target) -> str:
        """The page of a line on GitHub; "" where there is none."""
        environment = self._environments.get(target.environment)
        return wording.source_page(place.file, place.line, environment) or ""

    def history(self, result: Result) -> tuple[Earlier, ...]:
        """What stored runs found for this model and target, this one last; empty if it is first."""
        request = result.request
        earlier = self.view.history.get((request.model.name, target_label(request.target)), ())
        own = Earlier(self.view.run.id, result.status, result.phase)
        return (*earlier, own) if earlier else ()

    @cached_property
    def moved(self) -> tuple[tuple[str, Target], ...]:
        """Models and targets whose breaks are at other code than in the baseline, and no change."""
        changed = {(change.model, change.target) for change in self.view.changes}
        return tuple(key for key in self.view.before if key not in changed)

    def changed_breaks(
        self, model: str, target: Target
    ) -> tuple[tuple[GraphBreak | None, GraphBreak | None], ...]:
        """Breaks before and after a change, where either side kept its code."""
        old, new = self.view.before.get((model, target)), self._results.get((model, target))
        if old is None or new is None:
            return ()
        pairs = changed_breaks(old, new)
        return tuple(pair for pair in pairs if any(b and source_lines(b) for b in pair))[:5]

    @cached_property
    def _results(self) -> dict[tuple[str, Target], Result]:
        return {(r.request.model.name, r.request.target): r for r in self.view.results}


def family_counts(models: Iterable[ModelPage]) -> Counter[ResultGroup]:
    """Results by outcome."""
    return Counter(outcome(result) for model in models for result in model.results)


def anchor(label: str) -> str:
    """The id of a target's section on the page of a model."""
    return "on-" + re.sub(r"[^A-Za-z0-9_.-]", "-", label)


def _reasons(view: RunView, models: Iterable[ModelPage]) -> Iterator[ReasonPage]:
    found: dict[str, list[tuple[ModelPage, GraphBreak]]] = defaultdict(list)
    for model in models:
        for result in model.results:
            for graph_break in result.breaks:
                found[reason_label(graph_break)].append((model, graph_break))
    taken: set[str] = set()
    pages = {
        label: f"reasons/{file_name(hits[0][1].code, taken)}"
        for label, hits in sorted(found.items())
    }
    for reason in summary.top_reasons(view):
        hits = found[reason.label]
        yield ReasonPage(
            figures=reason,
            page=pages[reason.label],
            sample=hits[0][1],
            models=tuple({model.spec.name: model for model, _ in hits}.values()),
            places=_places(hits),
        )


def _places(hits: list[tuple[ModelPage, GraphBreak]]) -> tuple[ReportPlace, ...]:
    grouped: dict[str, list[tuple[ModelPage, GraphBreak]]] = defaultdict(list)
    for model, graph_break in hits:
        grouped[graph_break.fingerprint].append((model, graph_break))
    places = [
        ReportPlace(
            file=group[0][1].file,
            function=group[0][1].function,
            lines=tuple(sorted({graph_break.line for _, graph_break in group})),
            occurrences=sum(graph_break.occurrences for _, graph_break in group),
            models=len({model.spec.name for model, _ in group}),
        )
        for group in grouped.values()
    ]
    return tuple(sorted(places, key=lambda p: (-p.models, -p.occurrences, p.file, p.lines)))


def _failures(models: Iterable[ModelPage]) -> Iterator[FailureGroup]:
    kinds = (ResultGroup.COMPILE_ERROR, ResultGroup.NO_VERDICT, ResultGroup.NOT_RUN)
    found: dict[tuple[ResultGroup, str], list[tuple[ModelPage, Result]]] = defaultdict(list)
    for model in models:
        for result in model.results:
            if (kind := outcome(result)) in kinds:
                code = result.error.code if result.error else result.status.value
                found[(kind, code)].append((model, result))
    order = sorted(found, key=lambda key: (kinds.index(key[0]), -len(found[key]), key[1]))
    for kind, code in order:
        hits = found[(kind, code)]
        yield FailureGroup(
            outcome=kind,
            code=code,
            phases=tuple(sorted({result.phase.value for _, result in hits})),
            sample=hits[0][1],
            models=tuple({model.spec.name: model for model, _ in hits}.values()),
        )


WORST_FIRST = tuple(ResultGroup)


@dataclass(frozen=True, kw_only=True)
class ModelPage:
    """One model with its results in the order of the layers; `worst` sorts it."""

    spec: ModelSpec
    page: str
    results: tuple[Result, ...]
    changes: tuple[Change, ...]

    @property
    def worst(self) -> ResultGroup:
        return min((outcome(result) for result in self.results), key=WORST_FIRST.index)

    @property
    def by_target(self) -> dict[str, Result]:
        return {target_label(result.request.target): result for result in self.results}

    @cached_property
    def rows(self) -> tuple[MatrixRow, ...]:
        return rows.rows(self.results)

    def first_mark(self, result: Result) -> str:
        """`fails first` on the result that a row's first failure is of, else nothing."""
        firsts = (cell for _, cell in self.first_failing)
        cell = next((cell for cell in firsts if cell.result is result), None)
        if cell is None:
            return ""
        return "fails first" if cell.layer == result.request.target.name else "fails in eager"

    @property
    def first_failing(self) -> tuple[tuple[MatrixRow, Cell], ...]:
        """For each way in which it failed, the row and its first failing layer."""
        found = ((row, row.first_failing) for row in self.rows)
        return tuple((row, cell) for row, cell in found if cell is not None)

    @property
    def tiers(self) -> str:
        """`fake, full`; each kind of result once. Nothing ran where there are no durations."""
        kinds = {f"{r.tier.value}, {r.depth.value}": None for r in self.results if r.durations}
        return "; ".join(kinds) or "–"

    @property
    def why(self) -> str:
        """Causes on all targets, in few words."""
        return ", ".join(dict.fromkeys(cause for r in self.results for cause in why(r)))

    @property
    def seconds(self) -> float:
        return sum(spent(result) for result in self.results)

    @property
    def breaks(self) -> int | None:
        counts = [r.graph_breaks for r in self.results if r.graph_breaks is not None]
        return sum(counts) if counts else None


def file_name(name: str, taken: set[str]) -> str:
    """A file name that is safe in a URL and on any file system, unlike all in `taken`.

    Names that differ only in case, or in what was replaced, get a digest of the name.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", name.replace("/", "--")).lstrip(".-")[:100] or "model"
    if safe.casefold() in taken:
        safe += f"-{sha256(name.encode()).hexdigest()[:8]}"
    taken.add(safe.casefold())
    return f"{safe}.html"


def model_pages(view: RunView) -> Iterator[ModelPage]:
    """Yield the pages of all models, the most downloaded first."""
    results: dict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        results[result.request.model.name].append(result)
    changes: dict[str, list[Change]] = defaultdict(list)
    for change in view.changes:
        changes[change.model].append(change)
    specs = [found[0].request.model for found in results.values()]
    # File names are given in the order of the names, so that a report written again has the same.
    taken: set[str] = set()
    pages = {name: f"models/{file_name(name, taken)}" for name in sorted(results)}
    for spec in sorted(specs, key=lambda spec: (-(spec.downloads or 0), spec.name)):
        found = sorted(results[spec.name], key=lambda r: rows.target_order(r.request.target))
        yield ModelPage(
            spec=spec,
            page=pages[spec.name],
            results=tuple(found),
            changes=tuple(changes[spec.name]),
        )
