"""Which models of a run are searched for fixes, and in which order: pure functions of results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compilewatch import extras
from compilewatch.analysis.leverage import breaks_of
from compilewatch.contract.targets import CPU
from compilewatch.extras.fixes.records import FixKind, RunFix
from compilewatch.extras.fixes.search import Changes
from compilewatch.records import Request, Result
from compilewatch.report.wording import plural

TARGET = "dynamo"

SAMPLES = 3
"""On so many models a place is searched: the most downloaded ones, then the smallest."""

Key = tuple[str, str, str]
"""The request's key, and the model and the environment, which it does not name."""

_KINDS = tuple(FixKind)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and target with graph breaks; `places` are their fingerprints."""

    result: Result

    @property
    def request(self) -> Request:
        return self.result.request

    @property
    def name(self) -> str:
        return self.request.model.name

    @property
    def key(self) -> Key:
        return self.request.key, self.name, self.request.target.environment

    @property
    def places(self) -> frozenset[str]:
        return frozenset(each.fingerprint for each in breaks_of(self.result))


def cases_of(results: Iterable[Result]) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """Return the cases of a run, and a note for each kind of results that is none."""
    broken = [
        result for result in results if result.breaks and result.request.target.name == TARGET
    ]
    here = [result for result in broken if result.request.target.device == CPU]
    cases = [result for result in here if result.request.model.source not in extras.SANDBOXED]
    notes: list[str] = []
    if elsewhere := len(broken) - len(here):
        notes.append(
            f"{plural(elsewhere, 'result')} on declared devices not searched: nothing is "
            "verified on a device that is not here"
        )
    if generated := len(here) - len(cases):
        notes.append(
            f"{plural(generated, 'result')} of generated code not searched: such code only runs in "
            "the sandbox"
        )
    return tuple(Case(result=case) for case in cases), tuple(notes)


def samples(cases: Sequence[Case]) -> dict[str, tuple[Case, ...]]:
    """Place -> the cases on which it is searched; the place of most models first."""
    having: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        for place in case.places:
            having[place].append(case)
    ranked = sorted(having, key=lambda place: (-len(having[place]), place))
    return {place: tuple(sorted(having[place], key=_first)[:SAMPLES]) for place in ranked}


def ordered(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return the cases in the order in which they are worked on.

    First one model of each place, then a second and a third one, then all others: whatever limit
    ends it, the places that many models share are done.
    """
    chosen = samples(cases)
    first = (
        change[number]
        for number in range(SAMPLES)
        for change in chosen.values()
        if number < len(change)
    )
    return tuple({case.key: case for case in (*first, *sorted(cases, key=_first))}.values())


@dataclass(frozen=True, kw_only=True)
class KnownChanges:
    """Changes that were verified for `models`; `minimal` if the case needs each of them."""

    models: tuple[str, ...]
    changes: Changes
    minimal: bool


def known_changes(case: Case, known: Sequence[RunFix]) -> KnownChanges | None:
    """Return the known changes to try first, which the fixes of other models have.

    They are the smallest set that removed all graph breaks of the case elsewhere; of equal ones the
    one that did for most models. Without one, those that removed one of them each are joined.
    """
    covering = [run_fix for run_fix in known if run_fix.fix.removed >= case.places]
    if covering:
        times = Counter(_names(run_fix) for run_fix in covering)
        best = min(covering, key=lambda each: (len(each.fix.changes), -times[_names(each)]))
        minimal = best.fix.removed == case.places
        return KnownChanges(models=(best.model,), changes=best.fix.changes, minimal=minimal)
    parts: list[RunFix] = []
    for place in sorted(case.places):
        having = [run_fix for run_fix in known if place in run_fix.fix.removed]
        if having:
            parts.append(min(having, key=lambda each: len(each.fix.changes)))
    changes = {change.name: change for part in parts for change in part.fix.changes}
    if not changes:
        return None
    ranked = sorted(
        changes.values(), key=lambda each: (each.removes_check, _KINDS.index(each.kind))
    )
    removed = frozenset().union(*(part.fix.removed for part in parts))
    return KnownChanges(
        models=tuple(dict.fromkeys(part.model for part in parts)),
        changes=tuple(ranked),
        minimal=removed == case.places,
    )


def _names(known: RunFix) -> tuple[str, ...]:
    return tuple(change.name for change in known.fix.changes)


def _first(case: Case) -> tuple[int, int, str]:
    """The most downloaded first, then the smallest."""
    size = case.result.parameters
    return -(case.request.model.downloads or 0), size if size is not None else 2**63, case.name
