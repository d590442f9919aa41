"""Two results of one model on one target: a regression, a fix, or no change, and which breaks.

Two rules keep it honest. A regression is claimed only where both sides have a verdict: a model
that could not be built yesterday and breaks today was *newly tested*. And breaks are compared by
fingerprint, so that neither line drift nor a break that is hit more often is a change. Between
environments they are compared by place alone: versions of torch name one cause differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compilewatch.records import (
    ChangeKind,
    GraphBreak,
    Result,
    Status,
)
from compilewatch.records.labels import reason_label, source_line

BADNESS = {Status.PASS: 0, Status.GRAPH_BREAK: 1, Status.MISMATCH: 2, Status.ERROR: 2}
"""Of the statuses that a verdict can have."""


def judge(
    old: Result | None, new: Result | None, *, by_place: bool = False
) -> tuple[ChangeKind, str] | None:
    """What became of one model and target, with the reason in one line; None for no change."""
    if old is None:
        assert new is not None
        return ChangeKind.NEW, f"not in the baseline; {outcome_of(new)}"
    if new is None:
        return ChangeKind.GONE, f"no longer in the source; was {outcome_of(old)}"
    if old.is_verdict and new.is_verdict:
        return _judge_verdicts(old, new, by_place)
    if new.is_verdict:
        return ChangeKind.NEWLY_TESTED, f"was {outcome_of(old)}; now {outcome_of(new)}"
    if old.is_verdict:
        return ChangeKind.NO_LONGER_TESTED, f"was {outcome_of(old)}; now {outcome_of(new)}"
    return None


def _judge_verdicts(old: Result, new: Result, by_place: bool) -> tuple[ChangeKind, str] | None:
    worse = BADNESS[new.status] - BADNESS[old.status]
    if worse:
        kind = ChangeKind.REGRESSION if worse > 0 else ChangeKind.FIXED
        return kind, f"{outcome_of(old)} -> {outcome_of(new)}"
    if old.probed or new.probed:  # then the breaks after the first are not known
        return _judge_fullgraph(old, new)
    found = _judge_places(old, new) if by_place else _judge_fingerprints(old, new)
    return found or _judge_fullgraph(old, new)


def _judge_places(old: Result, new: Result) -> tuple[ChangeKind, str] | None:
    """A break counts as new or gone only where the other side has none at its place."""
    added = _elsewhere(new.breaks, old.breaks)
    if added:
        return ChangeKind.REGRESSION, f"breaks at a new place: {_codes_at(added)}"
    removed = _elsewhere(old.breaks, new.breaks)
    if removed:
        return ChangeKind.FIXED, f"no longer breaks: {_codes_at(removed)}"
    return None


def _elsewhere(breaks: Sequence[GraphBreak], others: Sequence[GraphBreak]) -> list[GraphBreak]:
    """Those of `breaks` at whose place none of `others` is; one without a place says nothing."""
    known = {key for other in others for key in _place_keys(other)}
    return [b for b in breaks if b.line > 0 and known.isdisjoint(_place_keys(b))]


def _place_keys(graph_break: GraphBreak) -> set[tuple[object, ...]]:
    """The line's number, and its text: torch's own files have it elsewhere in each version."""
    where = (graph_break.file, graph_break.function)
    text = source_line(graph_break).strip()
    return {(*where, graph_break.line), *([(*where, text)] if text else [])}


def _codes_at(breaks: Sequence[GraphBreak]) -> str:
    return ", ".join(sorted(f"{reason_label(b)} at {b.file}:{b.line}" for b in breaks))


def _judge_fingerprints(old: Result, new: Result) -> tuple[ChangeKind, str] | None:
    olds, news = _by_fingerprint(old), _by_fingerprint(new)
    added = [news[f] for f in news.keys() - olds.keys()]
    removed = [olds[f] for f in olds.keys() - news.keys()]
    if len(news) < len(olds):
        return ChangeKind.FIXED, f"{_distinct(olds, news)}; gone: {_codes(removed)}"
    # As many breaks as before, but of another cause: one was traded for a new one. Of the same
    # causes it is one that moved to another function or file.
    codes = {reason_label(b) for b in old.breaks}
    if len(news) > len(olds):
        return ChangeKind.REGRESSION, f"{_distinct(olds, news)}; new: {_codes(added)}"
    foreign = [b for b in added if reason_label(b) not in codes]
    if foreign:
        return ChangeKind.REGRESSION, f"{_codes(foreign)} instead of {_codes(removed)}"
    return None


def _judge_fullgraph(old: Result, new: Result) -> tuple[ChangeKind, str] | None:
    if old.fullgraph is None or new.fullgraph is None:
        return None
    if old.fullgraph.accepted and not new.fullgraph.accepted:
        why = new.fullgraph.code or "no reason given"
        return ChangeKind.REGRESSION, f"fullgraph=True no longer accepts it: {why}"
    if new.fullgraph.accepted and not old.fullgraph.accepted:
        return ChangeKind.FIXED, "fullgraph=True now accepts it"
    return None


def _by_fingerprint(result: Result) -> dict[str, GraphBreak]:
    return {b.fingerprint: b for b in result.breaks}


def outcome_of(result: Result) -> str:
    """`graph_break (2: GB0059 …, GB0170 …)`, `error in compile (inductor_error)`."""
    if result.status is Status.PASS:
        return "pass"
    if result.status is Status.GRAPH_BREAK:
        return f"graph_break ({len(_by_fingerprint(result))}: {_codes(result.breaks)})"
    text = f"{result.status.value} in {result.phase.value}"
    return f"{text} ({result.error.code})" if result.error is not None else text


def _distinct(olds: dict[str, GraphBreak], news: dict[str, GraphBreak]) -> str:
    return f"{len(olds)} -> {len(news)} distinct graph breaks"


def _codes(breaks: Sequence[GraphBreak]) -> str:
    return ", ".join(sorted({reason_label(b) for b in breaks}))


def changed_breaks(
    old: Result, new: Result
) -> tuple[tuple[GraphBreak | None, GraphBreak | None], ...]:
    """Pairs of breaks that are not on the same line of code in both; None where one side has none.

    Paired are breaks of one fingerprint, then those of one function.
    """
    olds, news = ({(b.fingerprint, _own_line(b)): b for b in r.breaks} for r in (old, new))
    gone = [found for key, found in olds.items() if key not in news]
    added = [found for key, found in news.items() if key not in olds]
    pairs: list[tuple[GraphBreak | None, GraphBreak | None]] = []
    likenesses: tuple[Callable[[GraphBreak], object], ...] = (
        lambda found: found.fingerprint,
        lambda found: (found.file, found.function),
    )
    for alike in likenesses:
        for before in list(gone):
            after = next((each for each in added if alike(each) == alike(before)), None)
            if after is not None:
                pairs.append((before, after))
                gone.remove(before)
                added.remove(after)
    return (*pairs, *((found, None) for found in gone), *((None, found) for found in added))


def _own_line(found: GraphBreak) -> str | int:
    return source_line(found).strip() or found.line
