"""Attributing the changes between two stored runs to torch, Transformers or compilewatch itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from compilewatch.environments.versions import release_of
from compilewatch.errors import InterpreterError, UsageError
from compilewatch.extras.history.attribution import Attribution, ChangeCause, Versions, attribute
from compilewatch.extras.history.bisect import Prepare
from compilewatch.extras.history.versions import Evaluator
from compilewatch.plan.keys import target_sha256
from compilewatch.records import (
    HARNESS_VERSION,
    Change,
    ChangeKind,
    Depth,
    Environment,
    ModelSpec,
    Result,
    Run,
    Target,
    Tier,
    Variants,
)

JUDGED = (ChangeKind.REGRESSION, ChangeKind.FIXED)
"""The changes between two verdicts; no other change has a cause in torch or Transformers alone."""

SHARED = frozenset({"torch", "transformers", "tokenizers", "triton", "sympy"})
"""Packages whose release follows from that of torch or Transformers."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs: its environments by name, and its results by model and target."""

    run: Run
    results: Mapping[tuple[str, Target], Result]

    @classmethod
    def of(cls, run: Run, results: Iterable[Result]) -> Side:
        return cls(run=run, results={(r.request.model.name, r.request.target): r for r in results})

    def environment(self, target: Target) -> Environment | None:
        return next((e for e in self.run.environments if e.name == target.environment), None)

    def is_of_today(self, target: Target) -> bool:
        """Whether this version of compilewatch would evaluate the target as the run did."""
        digests = self.run.settings.get("target_sha256", {})
        return self.run.harness_version == HARNESS_VERSION and digests.get(
            target.name
        ) == target_sha256(target.name)


@dataclass(kw_only=True)
class _Case:
    """One change: its two ends, the results that are known, and why nothing can be determined."""

    change: Change
    old: Result
    new: Result
    ends: tuple[Versions, Versions] | None = None
    corners: dict[Versions, Result | None] = field(default_factory=dict)
    missing: set[Versions] = field(default_factory=set)
    problem: str = ""
    others: list[str] = field(default_factory=list)
    """What else differs between the environments, so that their results are not used."""

    def spec(self, corner: Versions) -> ModelSpec:
        """The model as the run with this Transformers described it."""
        assert self.ends is not None
        of_old = corner.transformers == self.ends[0].transformers
        return (self.old if of_old else self.new).request.model


@dataclass(frozen=True, kw_only=True)
class Corner:
    """What is evaluated together: models on one target under one pair of releases."""

    versions: Versions
    target: Target
    depth: Depth
    tier: Tier
    variants: Variants


def attribute_changes(
    base: Side,
    side: Side,
    changes: Iterable[Change],
    evaluator: Evaluator,
    prepare: Prepare,
    *,
    limit: int,
    by_place: bool,
    report: Callable[[Corner, Sequence[str]], None],
) -> tuple[Attribution, ...]:
    """Return the cause of every change between two verdicts, in their order.

    At most `limit` changes are evaluated in the corners that they lack, at most four each;
    `report` is called before each corner. Results that are stored already are used. Those of the
    runs are not if another version of compilewatch made them, or if their environments differ in
    more than torch and Transformers; then the ends are evaluated again in like environments.
    `by_place` is how the comparison of the runs compared graph breaks.
    """
    cases = [_case(base, side, change) for change in changes if change.kind in JUDGED]
    waiting: defaultdict[Corner, list[_Case]] = defaultdict(list)
    open_ = [case for case in cases if case.missing]
    for case in open_[limit:]:
        case.problem = f"not evaluated: more than {limit} changes (--limit)"
    for case in open_[:limit]:
        for versions in sorted(case.missing):
            waiting[_corner(case, versions)].append(case)
    for corner, members in waiting.items():
        report(corner, [case.change.model for case in members])
        _evaluate(corner, members, evaluator, prepare)
    return tuple(_attribution(case, by_place) for case in cases)


def _case(base: Side, side: Side, change: Change) -> _Case:
    identity = (change.model, change.target)
    old, new = base.results[identity], side.results[identity]
    case = _Case(change=change, old=old, new=new)
    before, after = base.environment(change.target), side.environment(change.target)
    if before is None or after is None or not (before.transformers and after.transformers):
        case.problem = "a run does not say what its environment has"
    elif _how(old) != _how(new):
        case.problem = "the two runs differ in depth, tier or variants of inputs"
    elif old.request.model.build != new.request.model.build:
        case.problem = "the model is built otherwise: its configuration or source changed"
    else:
        ends = _versions(before), _versions(after)
        case.ends, case.others = ends, _other_differences(before, after)
        case.corners = {
            versions: result
            for versions, result, run in ((ends[0], old, base), (ends[1], new, side))
            if run.is_of_today(change.target) and not case.others
        }
        every = {Versions(a.torch, b.transformers) for a in ends for b in ends}
        case.missing = every - case.corners.keys()
        if ends[0] == ends[1] and not case.missing:
            case.problem = "the runs differ neither in torch nor in Transformers"
    return case


def _other_differences(before: Environment, after: Environment) -> list[str]:
    names = (before.packages.keys() | after.packages.keys()) - SHARED
    found = [
        f"{name} {before.packages.get(name, 'none')} -> {after.packages.get(name, 'none')}"
        for name in sorted(names)
        if before.packages.get(name) != after.packages.get(name)
    ]
    if before.python != after.python:
        found.insert(0, f"python {before.python} -> {after.python}")
    return found


def _versions(environment: Environment) -> Versions:
    return Versions(release_of(environment.torch), environment.transformers or "")


def _corner(case: _Case, versions: Versions) -> Corner:
    request = case.new.request
    # Which of the environments runs it is found later, from the versions.
    target = msgspec.structs.replace(request.target, environment=Target().environment)
    depth, tier, variants = _how(case.new)
    return Corner(versions=versions, target=target, depth=depth, tier=tier, variants=variants)


def _how(result: Result) -> tuple[Depth, Tier, Variants]:
    request = result.request
    return request.depth, request.tier, request.variants


def _evaluate(
    corner: Corner, members: Sequence[_Case], evaluator: Evaluator, prepare: Prepare
) -> None:
    """Evaluate a corner. Where its environment cannot be created, its cases say why."""
    try:
        environment = prepare(*corner.versions)
    except (InterpreterError, UsageError) as error:
        for case in members:
            case.problem = str(error)
        return
    settings = msgspec.structs.replace(
        evaluator.settings, depth=corner.depth, tier=corner.tier, variants=corner.variants
    )
    specs = [case.spec(corner.versions) for case in members]
    answers = replace(evaluator, settings=settings).evaluate(specs, corner.target, environment)
    for case, spec in zip(members, specs, strict=True):
        case.corners[corner.versions] = answers[spec.name].result


def _attribution(case: _Case, by_place: bool) -> Attribution:
    change = case.change
    if case.problem or case.ends is None:
        cause, detail = ChangeCause.NOT_DETERMINED, case.problem
    else:
        cause, detail = attribute(*case.ends, case.corners, by_place=by_place)
        if cause is ChangeCause.HARNESS and case.others:
            cause = ChangeCause.NOT_DETERMINED
            detail = f"the environments of the runs differ otherwise, too: {', '.join(case.others)}"
    return Attribution(
        model=change.model,
        target=change.target,
        before=change.before,
        after=change.after,
        cause=cause,
        detail=detail,
        corners={str(v): _said(result) for v, result in sorted(case.corners.items()) if result},
    )


def _said(result: Result) -> str:
    return f"{result.status.value} in {result.phase.value}"
