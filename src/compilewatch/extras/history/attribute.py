"""Who changed a result between two stored runs: torch, Transformers, both, or compilewatch itself.

Four results decide, of which a comparison has two: old torch with old Transformers, and new torch
with new Transformers. The other two corners of the square have one of each. Where results of the
comparison are of another version of compilewatch, its own two corners are evaluated again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from compilewatch import records
from compilewatch.analysis.comparison import classify_change
from compilewatch.environments.creation import release_of
from compilewatch.errors import InterpreterError, UsageError
from compilewatch.extras.history.bisect import Evaluator, Prepare
from compilewatch.plan import worker_sha256

JUDGED = (records.ChangeKind.REGRESSION, records.ChangeKind.FIXED)
"""The changes between two verdicts; no other change has a cause in torch or Transformers alone."""

SHARED = frozenset({"torch", "transformers", "tokenizers", "triton", "sympy"})
"""Packages whose release follows from that of torch or Transformers."""


class ChangeCause(StrEnum):
    """`harness` is compilewatch itself; `not_determined` is never a guess at one of the others."""

    TORCH = "torch"
    TRANSFORMERS = "transformers"
    INTERACTION = "interaction"
    HARNESS = "harness"
    NOT_DETERMINED = "not_determined"


class Versions(NamedTuple):
    """The releases of one corner."""

    torch: str
    transformers: str

    def __str__(self) -> str:
        return f"torch {self.torch} with transformers {self.transformers}"


class Attribution(records.Record, frozen=True, kw_only=True):
    """The cause of one change. `detail` is one sentence; `corners` are what was found, in words."""

    model: str
    target: records.Target
    before: records.Status | None
    after: records.Status | None
    cause: ChangeCause
    detail: str
    corners: dict[str, str]


Corners = Mapping[Versions, records.Result | None]
"""The results of today's compilewatch; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs: its environments by name, and its results by model and target."""

    run: records.Run
    results: Mapping[tuple[str, records.Target], records.Result]

    @classmethod
    def of(cls, run: records.Run, results: Iterable[records.Result]) -> Side:
        return cls(run=run, results={(r.request.model.name, r.request.target): r for r in results})

    def environment(self, target: records.Target) -> records.Environment | None:
        return next((e for e in self.run.environments if e.name == target.environment), None)

    def is_of_today(self, target: records.Target) -> bool:
        """Whether this version of compilewatch would evaluate the target as the run did."""
        digests = self.run.settings.get("target_sha256", {})
        return (
            self.run.harness_version == records.HARNESS_VERSION
            and digests.get(target.name) == worker_sha256()
        )


class _How(NamedTuple):
    """The settings that count for both runs."""

    depth: records.Depth
    tier: records.Tier
    variants: records.Variants

    @classmethod
    def of(cls, result: records.Result) -> _How:
        request = result.request
        return cls(request.depth, request.tier, request.variants)


class _Case:
    """One change: its ends, the results that are known, and why nothing can be determined.

    `others` is what else differs between the environments, so that their results are not used.
    """

    def __init__(self, base: Side, side: Side, change: records.Change) -> None:
        self.change, identity = change, (change.model, change.target)
        self.old, self.new = base.results[identity], side.results[identity]
        self.how = _How.of(self.new)
        self.ends: tuple[Versions, Versions] | None = None
        self.corners: dict[Versions, records.Result | None] = {}
        self.missing: set[Versions] = set()
        self.others: list[str] = []
        before, after = base.environment(change.target), side.environment(change.target)
        self.problem = ""
        if before is None or after is None or not (before.transformers and after.transformers):
            self.problem = "a run does not say what its environment has"
        elif _How.of(self.old) != self.how:
            self.problem = "the two runs differ in depth, tier or variants of inputs"
        elif self.old.request.model.build != self.new.request.model.build:
            self.problem = "the model is built otherwise: its configuration or source changed"
        else:
            self.ends = (
                Versions(release_of(before.torch), before.transformers),
                Versions(release_of(after.torch), after.transformers),
            )
            self.others = _other_differences(before, after)
            ends = zip(self.ends, (self.old, self.new), (base, side), strict=True)
            self.corners |= {
                versions: result
                for versions, result, run in ends
                if run.is_of_today(change.target) and not self.others
            }
            every = {Versions(a.torch, b.transformers) for a in self.ends for b in self.ends}
            self.missing = every - self.corners.keys()
            if len(every) == 1 and not self.missing:
                self.problem = "the runs differ neither in torch nor in Transformers"

    def spec(self, corner: Versions) -> records.ModelSpec:
        """The model as the run with this Transformers described it."""
        assert self.ends is not None
        of_old = corner.transformers == self.ends[0].transformers
        return (self.old if of_old else self.new).request.model

    def attribution(self, by_place: bool) -> Attribution:
        """The cause, once the corners are evaluated."""
        cause, detail = ChangeCause.NOT_DETERMINED, self.problem
        if self.ends is not None and not self.problem:
            cause, detail = attribute(*self.ends, self.corners, by_place=by_place)
        if cause is ChangeCause.HARNESS and self.others:
            cause = ChangeCause.NOT_DETERMINED
            detail = f"the environments of the runs differ otherwise, too: {', '.join(self.others)}"
        return Attribution(
            model=self.change.model,
            target=self.change.target,
            before=self.change.before,
            after=self.change.after,
            cause=cause,
            detail=detail,
            corners={
                str(versions): f"{result.status.value} in {result.phase.value}"
                for versions, result in sorted(self.corners.items())
                if result
            },
        )


def _other_differences(before: records.Environment, after: records.Environment) -> list[str]:
    lines = records.changed("python", before.python, after.python)
    for name in sorted((before.packages.keys() | after.packages.keys()) - SHARED):
        lines += records.changed(name, before.packages.get(name), after.packages.get(name))
    return lines


def attribute_changes(
    base: Side,
    side: Side,
    changes: Iterable[records.Change],
    evaluator: Evaluator,
    prepare: Prepare,
    *,
    limit: int,
    by_place: bool,
    report: Callable[[Versions, str, int], None],
) -> tuple[Attribution, ...]:
    """Return the cause of every change between two verdicts, in their order.

    At most `limit` changes are evaluated in the corners that they lack, at most four each;
    `report` is called before each corner, with its target and the number of models. Results that
    are stored already are used. Those of the runs are not if another version of compilewatch made
    them, or if their environments differ in more than torch and Transformers; then the ends are
    evaluated again in like environments. `by_place` is how the comparison of the runs compared
    graph breaks.
    """
    cases = [_Case(base, side, change) for change in changes if change.kind in JUDGED]
    open_ = [case for case in cases if case.missing]
    for case in open_[limit:]:
        case.problem = f"not evaluated: more than {limit} changes (--limit)"
    waiting: defaultdict[tuple[Versions, records.Target, _How], list[_Case]] = defaultdict(list)
    for case in open_[:limit]:
        # Which of the environments runs it is found by its versions.
        any_environment = records.Target().environment
        target = msgspec.structs.replace(case.change.target, environment=any_environment)
        for versions in sorted(case.missing):
            waiting[versions, target, case.how].append(case)
    for (versions, target, how), members in waiting.items():
        report(versions, target.name, len(members))
        try:
            environment = prepare(*versions)
        except (InterpreterError, UsageError) as error:
            for case in members:
                case.problem = str(error)
            continue
        specs = [case.spec(versions) for case in members]
        answers = evaluator.evaluate(specs, target, environment, **how._asdict())
        for case, spec in zip(members, specs, strict=True):
            case.corners[versions] = answers[spec.name].result
    return tuple(case.attribution(by_place) for case in cases)


def attribute(
    old: Versions, new: Versions, corners: Corners, *, by_place: bool = False
) -> tuple[ChangeCause, str]:
    """Return the cause of a change from `old` to `new`, and a sentence.

    `corners` has the results of the two ends and, if both packages differ, of the two mixtures.
    `by_place` compares graph breaks as the comparison did that found the change.
    """

    def same(one: Versions, other: Versions) -> bool:
        before, after = corners[one], corners[other]
        assert before is not None
        assert after is not None
        return classify_change(before, after, by_place=by_place) is None

    torch_only = Versions(new.torch, old.transformers)
    transformers_only = Versions(old.torch, new.transformers)
    for corner in dict.fromkeys((old, torch_only, transformers_only, new)):
        result = corners.get(corner)
        if result is None or not result.is_verdict:
            why = f"{result.status} in {result.phase}" if result else "there is no result"
            return ChangeCause.NOT_DETERMINED, f"no verdict of {corner}: {why}"
    if same(old, new):
        how = "with today's compilewatch the two versions have the same result"
        return ChangeCause.HARNESS, how
    if old.transformers == new.transformers:
        return ChangeCause.TORCH, "only torch differs"
    if old.torch == new.torch:
        return ChangeCause.TRANSFORMERS, "only Transformers differs"
    alone = (
        (ChangeCause.TORCH, "torch", torch_only),
        (ChangeCause.TRANSFORMERS, "Transformers", transformers_only),
    )
    changing = [(cause, name, corner) for cause, name, corner in alone if not same(old, corner)]
    if not changing:
        how = "neither of the two alone changes the result, only both together"
        return ChangeCause.INTERACTION, how
    as_new = all(same(corner, new) for *_, corner in changing)
    if len(changing) == 2:
        how = "each of the two alone does it" if as_new else "each of the two alone changes it"
        return ChangeCause.INTERACTION, how
    ((cause, name, _),) = changing
    if not as_new:
        return ChangeCause.INTERACTION, f"{name} alone changes the result, but to another one"
    return cause, f"{name} alone changes the result"
