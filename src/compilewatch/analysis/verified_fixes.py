"""What verified fixes of a run are worth: how many more models have no graph breaks with them.

A model counts only if its own fix is verified, on each of the targets that it breaks on. That the
same change helped another model with the same graph break is no verification.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compilewatch.analysis.leverage import By, Leverage, LeverageStep, breaks_of, cause_key
from compilewatch.analysis.summary import downloads_of
from compilewatch.contract.targets import target_label
from compilewatch.records import Result, Target
from compilewatch.records.views import ModelFix


@dataclass(frozen=True, kw_only=True)
class VerifiedChange:
    """One change, and how many of the counted models it is part of the fix of."""

    name: str
    models: int


@dataclass(frozen=True, kw_only=True)
class VerifiedTotal:
    """`changes` leave `models` without graph breaks, most downloaded first, each verified.

    `downloads` are theirs, None where none has a figure. `broken` counts the models with graph
    breaks on these targets, `improved` those of them verified for fewer graph breaks only.
    """

    changes: tuple[VerifiedChange, ...]
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
    found: Leverage, results: Sequence[Result], fixes: Sequence[ModelFix]
) -> VerifiedFixes | None:
    """Return what is verified of the steps of a table; None where nothing was searched."""
    total = verified_total(results, fixes, found.targets)
    if total is None:
        return None
    steps = step_fixes(found.fixes, results, fixes, by=found.by, targets=found.targets)
    return VerifiedFixes(total=total, steps=steps)


def verified_total(
    results: Iterable[Result], fixes: Iterable[ModelFix], targets: Sequence[str] = ()
) -> VerifiedTotal | None:
    """Return what the fixes are worth on targets with these labels (all by default).

    None where nothing was searched. A result with graph breaks in further input variants does not
    count, because a verification is for the main inputs.
    """
    found = _by_result(fixes)
    if not found:
        return None
    broken = _broken(results, targets)
    counted: dict[str, list[ModelFix]] = {}
    improved = 0
    for name, mine in broken.items():
        held = [(each, found.get((name, each.request.target))) for each in mine]
        if all(fix is not None and frees(fix, each) for each, fix in held):
            counted[name] = [fix for _, fix in held if fix is not None]
        elif all(fix is not None and fix.verified for _, fix in held):
            improved += 1
    specs = {name: broken[name][0].request.model for name in counted}
    times = Counter(
        change for each in counted.values() for change in {c for fix in each for c in fix.changes}
    )
    return VerifiedTotal(
        changes=tuple(
            VerifiedChange(name=name, models=models)
            for name, models in sorted(times.items(), key=lambda pair: (-pair[1], pair[0]))
        ),
        models=tuple(sorted(counted, key=lambda name: (-(specs[name].downloads or 0), name))),
        downloads=downloads_of(specs.values()),
        broken=len(broken),
        improved=improved,
    )


def step_fixes(
    steps: Iterable[LeverageStep],
    results: Iterable[Result],
    fixes: Iterable[ModelFix],
    *,
    by: By,
    targets: Sequence[str] = (),
) -> tuple[StepFix | None, ...]:
    """Return for each step the changes that are verified for its causes; None where none is."""
    found = _by_result(fixes)
    having: defaultdict[str, set[str]] = defaultdict(set)
    freed: defaultdict[str, list[tuple[str, ModelFix]]] = defaultdict(list)
    for name, mine in _broken(results, targets).items() if found else ():
        held = [(each, found.get((name, each.request.target))) for each in mine]
        free = all(fix is not None and frees(fix, each) for each, fix in held)
        for each, fix in held:
            for cause in {cause_key(one, by) for one in breaks_of(each)} - {None}:
                having[str(cause)].add(name)
                if free and fix is not None:
                    freed[str(cause)].append((name, fix))
    return tuple(_step_fix(step, having, freed) for step in steps)


def frees(fix: ModelFix, result: Result) -> bool:
    """Whether a fix is verified to leave a result without any graph break."""
    others = any(each.breaks for each in result.variants[1:])  # the first one has the main inputs
    return fix.verified and fix.single_graph and not others


def _step_fix(
    step: LeverageStep,
    having: dict[str, set[str]],
    freed: dict[str, list[tuple[str, ModelFix]]],
) -> StepFix | None:
    keys = [cause.key for cause in step.causes]
    hits = {name: fix.changes for key in keys for name, fix in freed.get(key, ())}
    if not hits:
        return None
    times = Counter(hits.values())
    best = min(times, key=lambda changes: (-times[changes], len(changes), changes))
    affected = {name for key in keys for name in having.get(key, ())}
    return StepFix(changes=best, verified=len(hits), affected=len(affected))


def _by_result(fixes: Iterable[ModelFix]) -> dict[tuple[str, Target], ModelFix]:
    return {(each.model, each.target): each for each in fixes}


def _broken(results: Iterable[Result], targets: Sequence[str]) -> dict[str, list[Result]]:
    found: defaultdict[str, list[Result]] = defaultdict(list)
    for each in results:
        if each.breaks and (not targets or target_label(each.request.target) in targets):
            found[each.request.model.name].append(each)
    return found
