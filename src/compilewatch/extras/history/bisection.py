"""The search for the pair of adjacent releases between which a model's result changed.

It is a binary search over *states*. Two results have the same state if their verdict and their set
of graph breaks are equal. That a release does not have the model is a state like any other; that
nothing is known of a release (a timeout, an environment that cannot be created) is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum

from compilewatch.records import Phase, Record, Result, Status
from compilewatch.records.labels import reason_label

MACHINES = frozenset({Status.TIMEOUT, Status.OOM, Status.CRASHED})
"""Statuses that say nothing about a release, because the machine may have been the cause."""


class Kind(StrEnum):
    """`failed`: an error before the compiler ran; `absent`: the release has no such model."""

    VERDICT = "verdict"
    FAILED = "failed"
    ABSENT = "absent"
    UNDETERMINED = "undetermined"


class Break(Record, frozen=True, kw_only=True):
    """One graph break: its fingerprint, its bounded cause, and where it is."""

    fingerprint: str
    reason: str
    file: str
    function: str
    line: int


class Evaluated(Record, frozen=True, kw_only=True):
    """What one release gave.

    `architecture` is the class that was built. `run` is the stored run that has the result, None
    where there is no result; `reused` says that an earlier run had it already. `detail` is one
    line.
    """

    release: str
    kind: Kind
    environment: str = ""
    architecture: str | None = None
    status: Status | None = None
    phase: Phase | None = None
    code: str = ""
    fullgraph: bool | None = None
    breaks: tuple[Break, ...] = ()
    detail: str = ""
    run: str | None = None
    reused: bool = False

    @property
    def state(self) -> tuple[object, ...]:
        """What must be equal for two releases to have the same result."""
        verdict = (self.kind, self.status, self.phase, self.code, self.fullgraph)
        return (*verdict, frozenset(each.fingerprint for each in self.breaks))

    def lacks(self, other: Evaluated) -> tuple[Break, ...]:
        """Return the graph breaks of another release that this one does not have."""
        own = {each.fingerprint for each in self.breaks}
        return tuple(each for each in other.breaks if each.fingerprint not in own)


class Bisection(Record, frozen=True, kw_only=True):
    """A finished search, with its evaluations in the order of the releases from good to bad.

    `last` is the last release with the state of the good one and `first` the first one known to
    differ; both are None where the ends do not differ, or one of them has no state. `between` are
    the releases between them of which nothing is known: the pair is adjacent if there are none.
    """

    releases: tuple[str, ...]
    evaluated: tuple[Evaluated, ...]
    last: str | None = None
    first: str | None = None
    between: tuple[str, ...] = ()

    def of(self, release: str) -> Evaluated:
        """Return what a release gave, which must have been evaluated."""
        return next(each for each in self.evaluated if each.release == release)

    @property
    def changes_again(self) -> bool:
        """Whether the bad release differs from `first` too, so that there is a further change."""
        return self.first is not None and self.of(self.first).state != self.evaluated[-1].state


def most_evaluations(releases: int) -> int:
    """Return the limit of a search over this many releases: two for the ends, two to spare."""
    return 4 + math.ceil(math.log2(releases))


def search(releases: Sequence[str], evaluate: Callable[[str], Evaluated]) -> Bisection:
    """Search releases, which run from the good one to the bad one (at least two).

    A release without a state costs one of the evaluations, and its neighbour is evaluated instead.
    """
    found: dict[int, Evaluated] = {}

    def ask(index: int) -> Evaluated:
        found[index] = evaluate(releases[index])
        return found[index]

    low, high = 0, len(releases) - 1
    good, bad = ask(low), ask(high)
    known = Kind.UNDETERMINED not in (good.kind, bad.kind)
    differ = known and good.state != bad.state
    while differ and len(found) < most_evaluations(len(releases)):
        middle = (low + high) / 2
        open_ = [index for index in range(low + 1, high) if index not in found]
        if not open_:
            break
        index = min(open_, key=lambda each: abs(each - middle))
        state = ask(index)
        if state.kind is Kind.UNDETERMINED:
            continue
        if state.state == good.state:
            low = index
        else:
            high = index
    return Bisection(
        releases=tuple(releases),
        evaluated=tuple(found[index] for index in sorted(found)),
        last=releases[low] if differ else None,
        first=releases[high] if differ else None,
        between=tuple(releases[low + 1 : high]) if differ else (),
    )


def evaluated(
    release: str, result: Result, *, environment: str, run: str | None, reused: bool
) -> Evaluated:
    """Return what a result says about a release."""
    kind = Kind.VERDICT if result.is_verdict else Kind.FAILED
    in_setup = result.status is Status.ERROR and result.phase is Phase.SETUP
    if result.status in MACHINES or in_setup:
        kind = Kind.UNDETERMINED
    return Evaluated(
        release=release,
        kind=kind,
        environment=environment,
        architecture=result.request.model.architecture,
        status=result.status,
        phase=result.phase,
        code=result.error.code if result.error is not None else "",
        fullgraph=result.fullgraph.accepted if result.fullgraph is not None else None,
        breaks=tuple(
            Break(
                fingerprint=each.fingerprint,
                reason=reason_label(each),
                file=each.file,
                function=each.function,
                line=each.line,
            )
            for each in result.breaks
        ),
        detail=result.detail,
        run=run,
        reused=reused,
    )
