"""What to fix first: which causes of graph breaks, once fixed, leave how many models without any.

Operators without a lowering for Neuron, in forecasts, are ranked alike, and so are the lines that
make Dynamo compile a model again for other sizes.

A model has no graph break any more when every cause of its breaks is fixed. Where one cause is the
only one, the number is exact, as far as the run can tell: Dynamo may find a break behind the one
that is fixed (docs/leverage.md has how often it did). Where a model has several causes, the number
of models that a cause affects is an upper bound of what its fix alone can give.

The order is greedy: each step takes what gives most for each cause to fix, given the steps before
it. Where no single cause leaves a model without breaks, a step has several causes.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from compilewatch import records
from compilewatch.analysis.summary import downloads_of, target_order
from compilewatch.contract.targets import target_label


class By(StrEnum):
    """What one fix is: of one function's code, of everything with one id, or a new lowering.

    `compilations`: of a line that makes Dynamo compile again for other sizes.
    """

    LINE = "line"
    ID = "id"
    OPERATOR = "operator"
    COMPILATIONS = "compilations"


class FixOrder(StrEnum):
    """What a step is chosen for: the models that it leaves without breaks, or their downloads."""

    MODELS = "models"
    DOWNLOADS = "downloads"


class FixableCause:
    """What can be fixed: a fingerprint (a reason in a function), or a reason wherever it strikes.

    `file`, `lines` and `function` are of its most frequent place, `places` counts the fingerprints.
    `occurrences` are of all models; `models` and `downloads` are of those that break here: the
    upper bound of what the fix can give. `alone` counts those that break nowhere else. `source` is
    the line's text.
    """

    def __init__(
        self,
        key: str,
        breaks: Sequence[records.GraphBreak],
        affected: Sequence[records.ModelSpec],
        alone: Sequence[records.ModelSpec],
    ) -> None:
        fingerprints: defaultdict[str, list[records.GraphBreak]] = defaultdict(list)
        for graph_break in breaks:
            fingerprints[graph_break.fingerprint].append(graph_break)
        here = max(fingerprints.values(), key=len)
        lines = Counter(graph_break.line for graph_break in here)
        usual = lines.most_common(1)[0][0]
        sample = next(graph_break for graph_break in here if graph_break.line == usual)
        # In the order in which `--json` has them.
        self.key, self.label, self.gb_id = key, records.reason_label(sample), sample.gb_id
        self.file, self.function, self.lines = sample.file, sample.function, tuple(sorted(lines))
        self.source = records.source_line(sample).strip()
        self.places = len(fingerprints)
        self.occurrences = sum(graph_break.occurrences for graph_break in breaks)
        self.models, self.downloads = len(affected), downloads_of(affected)
        self.alone, self.alone_downloads = len(alone), downloads_of(alone)
        self.example = (*alone, *affected)[0].name

    @property
    def place(self) -> str:
        """`transformers/models/aria/modeling_aria.py:12,34 in forward`."""
        lines = f"{self.file}:{','.join(map(str, self.lines))}" if self.file else "place unknown"
        return f"{lines} in {self.function}" if self.function else lines


def breaks_of(result: records.Result, by: By = By.LINE) -> tuple[records.GraphBreak, ...]:
    """The breaks of a result and of all input variants; of one that both name, only the first."""
    if by is By.OPERATOR:
        return result.missing_lowerings
    if by is By.COMPILATIONS:
        return result.specialising_lines
    breaks: dict[tuple[str, int], records.GraphBreak] = {}
    for one in (*result.breaks, *(one for variant in result.variants for one in variant.breaks)):
        breaks.setdefault((one.fingerprint, one.line), one)
    return tuple(breaks.values())


def cause_key(graph_break: records.GraphBreak, by: By) -> str | None:
    """The key of a break's cause; None where torch gave no reason."""
    if graph_break.code == records.UNATTRIBUTED:
        return None  # nobody can fix it
    if by is By.OPERATOR:
        return graph_break.code
    return records.reason_label(graph_break) if by is By.ID else graph_break.fingerprint


class FixableCauses:
    """The breaks of results, by cause and by model."""

    def __init__(self, results: Iterable[records.Result], by: By) -> None:
        self.models: dict[str, records.ModelSpec] = {}
        self.found: defaultdict[str, list[tuple[str, records.GraphBreak]]] = defaultdict(list)
        self.of_model: defaultdict[str, set[str | None]] = defaultdict(set)
        for result in results:
            name = result.request.model.name
            if result.probed and result.breaks:
                self.of_model[name].add(None)  # only its first break was looked for
            for graph_break in breaks_of(result, by):
                self.models[name] = result.request.model
                key = cause_key(graph_break, by)
                self.of_model[name].add(key)
                if key is not None:
                    self.found[key].append((name, graph_break))
        self.alone: defaultdict[str | None, list[str]] = defaultdict(list)
        """The models that break for one cause only."""
        for name, keys in self.of_model.items():
            if len(keys) == 1:
                self.alone[next(iter(keys))].append(name)

    def affected(self, keys: Iterable[str | None]) -> int:
        """How many models break for one of these causes."""
        return len({name for key in keys if key is not None for name, _ in self.found[key]})

    def downloads_of(self, names: Iterable[str]) -> int | None:
        return downloads_of(self.models[name] for name in names)

    def ranked(self, names: Iterable[str]) -> list[str]:
        """The models, most downloaded first."""
        return sorted(names, key=lambda name: _most_downloaded(self.models[name]))

    def by_occurrences(self) -> list[FixableCause]:
        """All causes, the most frequent first."""
        causes = map(self.describe, self.found)
        return sorted(causes, key=lambda cause: (-cause.occurrences, -cause.models, cause.key))

    def describe(self, key: str) -> FixableCause:
        affected, alone = (
            [self.models[name] for name in self.ranked(names)]
            for names in ({name for name, _ in self.found[key]}, self.alone[key])
        )
        breaks = [graph_break for _, graph_break in self.found[key]]
        return FixableCause(key, breaks, affected, alone)


class LeverageStep:
    """One step: what to fix together, and the models that have no graph break any more after it.

    `models` are those that this step adds, most downloaded first; `exact` says whether each of them
    breaks at these causes only, so that the step gives them without the steps before it.
    `affected` (models that break at one of the causes) is the upper bound. The totals include the
    models of the steps before.
    """

    def __init__(
        self,
        causes: FixableCauses,
        keys: frozenset[str | None],
        names: Sequence[str],
        before: Sequence[str],
    ) -> None:
        described = map(causes.describe, filter(None, keys))
        # In the order in which `--json` has them.
        self.causes = tuple(sorted(described, key=lambda c: (-c.models, c.label, c.key)))
        self.models = tuple(causes.ranked(names))
        self.downloads = causes.downloads_of(names)
        self.exact = all(causes.of_model[name] <= keys for name in names)
        self.affected = causes.affected(keys)
        self.total_models = len(before) + len(self.models)
        self.total_downloads = causes.downloads_of((*before, *self.models))


class Leverage(FixableCauses):
    """What to fix first on some targets: `fixes` are the steps, best first, at most `top`.

    Only results with graph breaks count, of the target with this label, or of the first kind of
    target (Dynamo before Inductor) that has any, in all its modes and environments.
    """

    def __init__(
        self,
        results: Iterable[records.Result],
        *,
        by: By = By.LINE,
        order: FixOrder = FixOrder.MODELS,
        top: int | None = None,
        target: str | None = None,
    ) -> None:
        broken = [result for result in results if breaks_of(result, by)]
        if by is By.OPERATOR and target is None:  # what a device found is not mixed with forecasts
            broken = [r for r in broken if r.is_forecast] or broken
        chosen = of_target(broken, target)
        super().__init__(chosen, by)
        self.by, self.order = by, order
        self.targets = tuple(dict.fromkeys(target_label(r.request.target) for r in chosen))
        self.broken = len(self.of_model)
        self.downloads = downloads_of(self.models.values())
        # Torch gave no reason for one of their breaks, or only the first was looked for.
        self.unknown = sum(None in keys for keys in self.of_model.values())
        self.fixes = tuple(self._steps(top))
        # The models that still break after all of them.
        self.left = self.broken - sum(len(step.models) for step in self.fixes)

    def to_json(self) -> dict[str, object]:
        names = ("by", "order", "targets", "broken", "downloads", "unknown", "left")
        fixes = [vars(fix) | {"causes": list(map(vars, fix.causes))} for fix in self.fixes]
        return {name: getattr(self, name) for name in names} | {"fixes": fixes}

    def _steps(self, top: int | None) -> Iterator[LeverageStep]:
        """Yield the steps; a set of causes is a candidate where it is all that a model has left."""
        left = {name: keys for name, keys in self.of_model.items() if None not in keys}
        fixed: set[str | None] = set()
        unbroken: list[str] = []

        def worth(keys: frozenset[str | None]) -> tuple[float, float, int, list[str]]:
            """What a step gives for each cause; of equal ones by the other figure, then reach."""
            models = len(gained[keys]) / len(keys)
            downloads = (self.downloads_of(gained[keys]) or 0) / len(keys)
            by_models = self.order is FixOrder.MODELS
            figures = (models, downloads) if by_models else (downloads, models)
            return (*figures, self.affected(keys), sorted(filter(None, keys)))

        for _ in itertools.count() if top is None else range(top):
            if not left:
                return
            gained = {
                candidate: [name for name, keys in left.items() if keys - fixed <= candidate]
                for candidate in {frozenset(keys - fixed) for keys in left.values()}
            }
            best = max(gained, key=worth)
            # A part of it that gives something by itself comes first, as a step of its own.
            while parts := [keys for keys in gained if keys < best]:
                best = max(parts, key=worth)
            yield LeverageStep(self, best, gained[best], unbroken)
            fixed |= best
            unbroken += gained[best]
            left = {name: keys for name, keys in left.items() if name not in gained[best]}


def of_target(broken: list[records.Result], label: str | None) -> list[records.Result]:
    """Return the results of the target with this label, or of the first kind that has any."""
    if label is not None:
        return [result for result in broken if target_label(result.request.target) == label]
    first = min((target_order(r.request.target)[:1] for r in broken), default=None)
    return [result for result in broken if target_order(result.request.target)[:1] == first]


def models_of_one_reason(results: Sequence[records.Result]) -> dict[str, tuple[int, int | None]]:
    """Reason -> models, and their downloads, that break for this reason only; zeros included."""
    causes = FixableCauses(results, By.ID)
    return {
        reason: (len(causes.alone[reason]), causes.downloads_of(causes.alone[reason]))
        for reason in causes.found
    }


@dataclass(frozen=True, kw_only=True)
class VerifiedTotal:
    """`changes` leave `models` without graph breaks, most downloaded first, each verified.

    `changes` count the models that each of them is part of the fix of, most models first.
    `downloads` are theirs, None where none has a figure. `broken` counts the models with graph
    breaks on these targets, `improved` those of them verified for fewer graph breaks only.
    """

    changes: dict[str, int]
    models: tuple[str, ...]
    downloads: int | None
    broken: int
    improved: int


@dataclass(frozen=True, kw_only=True)
class StepFix:
    """The changes that are verified for most models with the causes of a step.

    `verified` counts the models at one of these causes that are verified as a single graph, by any
    changes, of the `affected` ones.
    """

    changes: tuple[str, ...]
    verified: int
    affected: int


@dataclass(frozen=True, kw_only=True)
class VerifiedFixes:
    """The verified fixes beside a table of what to fix first: its total, and one entry a step."""

    total: VerifiedTotal
    steps: tuple[StepFix | None, ...]


def verified_fixes(
    ranking: Leverage, results: Sequence[records.Result], fixes: Sequence[records.ModelFix]
) -> VerifiedFixes | None:
    """Return what is verified of the steps of a table; None where nothing was searched."""
    if ranking.by in (By.OPERATOR, By.COMPILATIONS):
        return None
    total = verified_total(results, fixes, ranking.targets)
    if total is None:
        return None
    freed: defaultdict[str | None, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for name, pairs in _broken(results, fixes, ranking.targets).items():
        free = all(_frees(fix, result) for result, fix in pairs)
        for result, fix in pairs:
            if free and fix is not None:
                for graph_break in breaks_of(result):
                    freed[cause_key(graph_break, ranking.by)][name] = fix.changes

    def step_fix(step: LeverageStep) -> StepFix | None:
        keys = [cause.key for cause in step.causes]
        changes_of = {name: changes for key in keys for name, changes in freed[key].items()}
        if not changes_of:
            return None
        times = Counter(changes_of.values())
        best = min(times, key=lambda changes: (-times[changes], len(changes), changes))
        return StepFix(changes=best, verified=len(changes_of), affected=step.affected)

    return VerifiedFixes(total=total, steps=tuple(map(step_fix, ranking.fixes)))


def verified_total(
    results: Iterable[records.Result],
    fixes: Sequence[records.ModelFix],
    targets: Sequence[str] = (),
) -> VerifiedTotal | None:
    """Return what the fixes are worth on targets with these labels (all by default).

    None where nothing was searched. A result with graph breaks in further input variants does not
    count, because a verification is for the main inputs.
    """
    if not fixes:
        return None
    broken = _broken(results, fixes, targets)
    freed: list[records.ModelSpec] = []
    times: Counter[str] = Counter()
    improved = 0
    for pairs in broken.values():
        verified = [fix for _, fix in pairs if fix is not None and fix.verified]
        if all(_frees(fix, result) for result, fix in pairs):
            freed.append(pairs[0][0].request.model)
            times.update({change for fix in verified for change in fix.changes})
        elif len(verified) == len(pairs):
            improved += 1
    return VerifiedTotal(
        changes=dict(sorted(times.items(), key=lambda pair: (-pair[1], pair[0]))),
        models=tuple(spec.name for spec in sorted(freed, key=_most_downloaded)),
        downloads=downloads_of(freed),
        broken=len(broken),
        improved=improved,
    )


def _frees(fix: records.ModelFix | None, result: records.Result) -> bool:
    """Whether a fix is verified to leave a result without any graph break."""
    others = any(variant.breaks for variant in result.variants[1:])  # the first: the main inputs
    return fix is not None and fix.verified and fix.single_graph and not others


def _broken(
    results: Iterable[records.Result], fixes: Iterable[records.ModelFix], targets: Sequence[str]
) -> dict[str, list[tuple[records.Result, records.ModelFix | None]]]:
    """The results with graph breaks on these targets by model, each with what was found."""
    fix_of = {(fix.model, fix.target): fix for fix in fixes}
    by_model = defaultdict[str, list[tuple[records.Result, records.ModelFix | None]]](list)
    for result in results:
        request = result.request
        if result.breaks and (not targets or target_label(request.target) in targets):
            pair = result, fix_of.get((request.model.name, request.target))
            by_model[request.model.name].append(pair)
    return by_model


def _most_downloaded(spec: records.ModelSpec) -> tuple[int, str]:
    return -(spec.downloads or 0), spec.name
