"""Which models of a run are searched for fixes, and in which order: pure functions of results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compilewatch import extras
from compilewatch.analysis.leverage import breaks_of
from compilewatch.contract.targets import CPU
from compilewatch.extras.fixes.of_run.records import FixState, RunFix
from compilewatch.extras.fixes.records import Fix, FixChange, FixKind, FixStatus, Rejection
from compilewatch.records import Request, Result, Status
from compilewatch.report.wording import plural

TARGET = "dynamo"

SAMPLES = 3
"""On so many models a place is searched: the most downloaded ones, then the smallest."""

Key = tuple[str, str, str]
"""The request's key, and the model and the environment, which it does not name."""

_KINDS = tuple(FixKind)

_STATES = {
    FixStatus.VERIFIED: FixState.VERIFIED,
    FixStatus.IMPROVES: FixState.IMPROVES,
    FixStatus.NOTHING: FixState.NOTHING,
    FixStatus.NO_BREAK: FixState.NO_VERDICT,
    FixStatus.NO_VERDICT: FixState.NO_VERDICT,
}


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


@dataclass(frozen=True, kw_only=True)
class KnownFix:
    """Changes that were verified for models: `removes` are the fingerprints that went with them."""

    models: tuple[str, ...]
    changes: tuple[FixChange, ...]
    removes: frozenset[str]


def cases_of(results: Iterable[Result]) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """Return the cases of a run, and a note for each kind of results that is none."""
    broken = [each for each in results if each.breaks and each.request.target.name == TARGET]
    here = [each for each in broken if each.request.target.device == CPU]
    cases = [each for each in here if each.request.model.source not in extras.SANDBOXED]
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
    return tuple(Case(result=each) for each in cases), tuple(notes)


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
        each[number] for number in range(SAMPLES) for each in chosen.values() if number < len(each)
    )
    return tuple({case.key: case for case in (*first, *sorted(cases, key=_first))}.values())


def attempts(case: Case, known: Sequence[KnownFix]) -> tuple[KnownFix, ...]:
    """Return the known changes to try first: at most one set that removes all, and a union.

    The set is the smallest one that removed all graph breaks of the case elsewhere; of equal ones
    the one that did for most models. Without one, those that removed one of them each are joined.
    """
    covering = [each for each in known if each.removes >= case.places]
    if covering:
        times = Counter(_names(each) for each in covering)
        best = min(covering, key=lambda each: (len(each.changes), -times[_names(each)]))
        return (best,)
    parts: list[KnownFix] = []
    for place in sorted(case.places):
        having = [each for each in known if place in each.removes]
        if not having:
            continue
        parts.append(min(having, key=lambda each: len(each.changes)))
    changes = {change.name: change for part in parts for change in part.changes}
    if not changes:
        return ()
    ranked = sorted(
        changes.values(), key=lambda each: (each.removes_check, _KINDS.index(each.kind))
    )
    return (
        KnownFix(
            models=tuple(dict.fromkeys(name for part in parts for name in part.models)),
            changes=tuple(ranked),
            removes=frozenset().union(*(part.removes for part in parts)),
        ),
    )


def _names(known: KnownFix) -> tuple[str, ...]:
    return tuple(change.name for change in known.changes)


def _first(case: Case) -> tuple[int, int, str]:
    """The most downloaded first, then the smallest."""
    size = case.result.parameters
    return -(case.request.model.downloads or 0), size if size is not None else 2**63, case.name


def state_of(fix: Fix) -> FixState:
    """Return the state of what a search or a trial found."""
    state = _STATES[fix.status]
    if state is FixState.NOTHING and any(_was_captured(fix, each) for each in fix.rejections):
        return FixState.CAPTURED
    return state


def _was_captured(fix: Fix, rejected: Rejection) -> bool:
    """Whether Dynamo captured a single graph under changes that the verification rejected."""
    names = set(rejected.changes)
    return any(set(each.changes) == names and each.status == Status.PASS for each in fix.trials)


def removes(fix: Fix) -> frozenset[str]:
    """Return the fingerprints that are removed by what is verified."""
    if fix.status not in (FixStatus.VERIFIED, FixStatus.IMPROVES):
        return frozenset()
    left = {each.fingerprint for each in fix.left}
    return frozenset(each.fingerprint for each in fix.breaks) - left


def known_fix(found: RunFix) -> KnownFix:
    """Return what was verified for one model, to be tried on others."""
    return KnownFix(models=(found.model,), changes=found.fix.changes, removes=removes(found.fix))
