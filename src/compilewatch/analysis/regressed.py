"""Which results of a run are worse than in the last good state, and since when.

The baseline is the run before. From the second run after a regression on, it is broken itself, and
a comparison with it says that nothing changed. Here a result stays worse until it is as good as it
was, for as long as the history of the view goes back.
"""

from __future__ import annotations

from typing import NamedTuple

from compilewatch.analysis.judgement import BADNESS
from compilewatch.contract.targets import target_label
from compilewatch.records import ChangeKind, Result
from compilewatch.records.results import is_verdict
from compilewatch.records.views import Earlier, RunView


class Regressed(NamedTuple):
    """A result that is worse than an earlier one, and the first run in which it was."""

    result: Result
    since: str


def regressed(view: RunView) -> tuple[Regressed, ...]:
    """Return the results that are worse than they were, the most downloaded models first.

    An accepted result, which meets an expectation, is none of them.
    """
    worse = {(c.model, c.target) for c in view.changes if c.kind is ChangeKind.REGRESSION}
    found = []
    for result in view.results:
        if not result.is_verdict or result.expectation is not None:
            continue
        since = _since(result, _earlier(view, result))
        if since is None and (result.request.model.name, result.request.target) in worse:
            since = ""
        if since is not None:
            found.append(Regressed(result, since or view.run.id))
    return tuple(sorted(found, key=_rank))


def is_comparable(view: RunView) -> bool:
    """Whether there is an earlier verdict on any result, so that none being worse is a finding."""
    return view.baseline is not None or any(
        is_verdict(point.status, point.phase)
        for result in view.results
        for point in _earlier(view, result)
    )


def _earlier(view: RunView, result: Result) -> tuple[Earlier, ...]:
    key = (result.request.model.name, target_label(result.request.target))
    return view.history.get(key, ())


def _since(result: Result, earlier: tuple[Earlier, ...]) -> str | None:
    """The run after the last better verdict, or "" for this run; None if none was better."""
    after = ""
    for point in reversed(earlier):
        if is_verdict(point.status, point.phase):
            if BADNESS[point.status] < BADNESS[result.status]:
                return after
            after = point.run
    return None


def _rank(one: Regressed) -> tuple[int, str, str]:
    model = one.result.request.model
    return -(model.downloads or 0), model.name, target_label(one.result.request.target)
