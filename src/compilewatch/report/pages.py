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
from compilewatch.analysis.leverage import By, Leverage, VerifiedFixes, leverage, verified_fixes
from compilewatch.analysis.rows import Cell, MatrixRow
from compilewatch.contract.targets import target_label
from compilewatch.records import (
    Change,
    ChangeKind,
    Earlier,
    ErrorRecord,
    GraphBreak,
    ModelFix,
    ModelSpec,
    Result,
    RunView,
    StackFrame,
    Target,
    reason_label,
    source_lines,
    spent,
)
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


class RunReport:
    """A run as the templates of its report show it."""

    def __init__(self, view: RunView) -> None:
        results = view.results
        self.view = view
        self.figures = summary.summarise(view)
        self.models = tuple(model_pages(view))
        self.reasons = tuple(_reasons(view, self.models))
        self.targets = rows.targets_in_order(results)
        self.first_failures = rows.first_failures(r for m in self.models for r in m.rows)
        self.target_reasons = rows.reasons_by_target(view)
        self.counts = Counter(map(outcome, results))
        self.by_target = {
            label: Counter(outcome(r) for r in results if target_label(r.request.target) == label)
            for label in self.targets
        }
        self.families = {
            group.name: tuple(m for m in self.models if m.spec.family == group.name)
            for group in summary.by_family(view)
        }
        # Models under the worst of their outcomes.
        worst = {kind: tuple(m for m in self.models if m.worst is kind) for kind in WORST_FIRST}
        self.sections = {kind: models for kind, models in worst.items() if models}
        # A model that is only in the baseline has no page.
        self.page_of = {model.spec.name: model.page for model in self.models}
        by_downloads = sorted(view.changes, key=lambda c: (-(c.downloads or 0), c.model))
        self.changes = {
            kind: [change for change in by_downloads if change.kind is kind] for kind in ChangeKind
        }
        # Models and targets whose breaks are at other code than in the baseline, and no change.
        changed = {(change.model, change.target) for change in view.changes}
        self.moved = tuple(key for key in view.before if key not in changed)
        self.failures = tuple(_failures(self.models))
        # What to fix first, by line and by id; empty where no model has a graph break.
        ranked = (leverage(results, by=by, top=FIXES_SHOWN) for by in By)
        self.leverage = tuple(steps for steps in ranked if steps.fixes)
        # Two models of one configuration are evaluated once, and the other's result names this run.
        self.own_runs = (None, view.run.id, *view.run.merged_from)
        self._reason_pages = {reason.figures.label: reason.page for reason in self.reasons}
        self._fixes = {(fix.model, fix.target): fix for fix in view.fixes}
        self._environments = {
            environment.name: environment for environment in view.run.environments
        }
        self._results = {(r.request.model.name, r.request.target): r for r in results}

    @property
    def charted_families(self) -> tuple[tuple[str, Counter[ResultGroup]], ...]:
        """Results by outcome of the families that pass least, then of the most downloaded.

        None where no family has several results: a chart of single results says nothing.
        """
        counts = [(name, family_counts(models)) for name, models in self.families.items()]
        if all(results.total() == 1 for _, results in counts):
            return ()
        counts.sort(key=lambda family: family[1][ResultGroup.PASS] / family[1].total())
        return tuple(counts[:CHARTED_FAMILIES])

    def reason_page(self, graph_break: GraphBreak) -> str:
        return self._reason_pages[reason_label(graph_break)]

    def verified(self, steps: Leverage) -> VerifiedFixes | None:
        """What is verified of the steps of a table; None where no fixes were searched."""
        return verified_fixes(steps, self.view.results, self.view.fixes)

    def fix_of(self, result: Result) -> ModelFix | None:
        """What was found against the graph breaks of a result; None where nothing was searched."""
        return self._fixes.get((result.request.model.name, result.request.target))

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

    def changed_breaks(
        self, model: str, target: Target
    ) -> tuple[tuple[GraphBreak | None, GraphBreak | None], ...]:
        """Breaks before and after a change, where either side kept its code."""
        old, new = self.view.before.get((model, target)), self._results.get((model, target))
        if old is None or new is None:
            return ()
        pairs = changed_breaks(old, new)
        return tuple(pair for pair in pairs if any(b and source_lines(b) for b in pair))[:5]


def family_counts(models: Iterable[ModelPage]) -> Counter[ResultGroup]:
    """Results by outcome."""
    return Counter(outcome(result) for model in models for result in model.results)


def anchor(label: str) -> str:
    """The id of a target's section on the page of a model."""
    return "on-" + re.sub(r"[^A-Za-z0-9_.-]", "-", label)


def _reasons(view: RunView, models: Iterable[ModelPage]) -> Iterator[ReasonPage]:
    hits_by_reason: dict[str, list[tuple[ModelPage, GraphBreak]]] = defaultdict(list)
    for model in models:
        for result in model.results:
            for graph_break in result.breaks:
                hits_by_reason[reason_label(graph_break)].append((model, graph_break))
    taken: set[str] = set()
    pages = {
        label: f"reasons/{file_name(hits[0][1].code, taken)}"
        for label, hits in sorted(hits_by_reason.items())
    }
    for reason in summary.top_reasons(view):
        hits = hits_by_reason[reason.label]
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
    by_kind: dict[tuple[ResultGroup, str], list[tuple[ModelPage, Result]]] = defaultdict(list)
    for model in models:
        for result in model.results:
            if (kind := outcome(result)) in kinds:
                code = result.error.code if result.error else result.status.value
                by_kind[(kind, code)].append((model, result))
    order = sorted(by_kind, key=lambda key: (kinds.index(key[0]), -len(by_kind[key]), key[1]))
    for kind, code in order:
        hits = by_kind[(kind, code)]
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
        firsts = ((row, row.first_failing) for row in self.rows)
        return tuple((row, cell) for row, cell in firsts if cell is not None)

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
    specs = [members[0].request.model for members in results.values()]
    # File names are given in the order of the names, so that a report written again has the same.
    taken: set[str] = set()
    pages = {name: f"models/{file_name(name, taken)}" for name in sorted(results)}
    for spec in sorted(specs, key=lambda spec: (-(spec.downloads or 0), spec.name)):
        members = sorted(results[spec.name], key=lambda r: rows.target_order(r.request.target))
        yield ModelPage(
            spec=spec,
            page=pages[spec.name],
            results=tuple(members),
            changes=tuple(changes[spec.name]),
        )
