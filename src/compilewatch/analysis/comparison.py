"""Which stored run another one is compared with, what changed, and what else differs.

The baseline is the run before. From the second run after a regression on, it is broken itself, and
a comparison with it says that nothing changed. For `regressed` a result stays worse until it is as
good as it was, for as long as the history of the view goes back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from compilewatch import records
from compilewatch.contract.targets import target_label
from compilewatch.errors import UsageError
from compilewatch.records import Change, ChangeKind, Result, Run, Status, Target

Identity = tuple[str, Target]
"""A model's name and a target: what is compared with what."""

Classified = tuple[ChangeKind, str] | None
"""What became of a model and target, with the reason in one line; None for no change."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What became of each model and target of either side that did not stay as it was.

    `differences` names what differs between the environments (`torch 2.12.0 -> 2.13.0`).
    """

    changes: tuple[Change, ...]
    differences: tuple[str, ...]


def default_baseline(candidates: Iterable[Run], run: Run) -> Run | None:
    """The newest finished run before this one that evaluated the same things.

    The same: source, shard, and settings `selection`, `targets`, `train_top`, `depth` and `tier`.
    Versions may differ; finding out what they change is the point. One that lacks shards is none:
    against it, a regression of a model it lacks would pass for a new model. `candidates` come in
    any order.
    """
    alike = [
        other
        for other in candidates
        if may_be_baseline(other) and other.id < run.id and scope(other) == scope(run)
    ]
    return max(alike, key=lambda other: other.id, default=None)


def may_be_baseline(run: Run) -> bool:
    """Whether a run has a result of all that it planned."""
    return run.state == "finished" and not run.missing_shards


def scope(run: Run, *settings: str) -> tuple[object, ...]:
    """What a run evaluated, whatever the versions were. Not hashable."""
    names = settings or ("selection", "targets", "train_top", "depth", "tier")
    return (run.source, run.shard, *map(run.settings.get, names))


def compare(
    baseline: Run,
    before: Iterable[Result],
    run: Run,
    after: Iterable[Result],
    *,
    by_place: bool = False,
) -> Comparison:
    """Compare two runs; changes come by kind, most downloaded models first.

    `by_place` takes breaks at one place for the same whatever their cause is called.
    """
    olds, news = _by_identity(before), _by_identity(after)
    changes: list[Change] = []
    for identity in olds.keys() | news.keys():
        old, new = olds.get(identity), news.get(identity)
        present = new or olds[identity]
        if new is None:
            change: Classified = _absence(baseline, run, len(news), present)
        elif old is None:
            change = ChangeKind.NEW, f"not in the baseline; {outcome_of(new)}"
        else:
            change = classify_change(old, new, by_place=by_place)
        if change is None:
            continue
        kind, reason = change
        changes.append(
            Change(
                kind=kind,
                model=identity[0],
                target=identity[1],
                before=old.status if old else None,
                after=new.status if new else None,
                reason=reason,
                family=present.request.model.family,
                downloads=present.request.model.downloads,
                causes=_causes(baseline, old, run, new) if old and new else (),
            )
        )
    order = list(ChangeKind)
    changes.sort(
        key=lambda c: (order.index(c.kind), -(c.downloads or 0), c.model, target_label(c.target))
    )
    return Comparison(changes=tuple(changes), differences=differences(baseline, run))


def between(
    baseline: Run,
    before: Iterable[Result],
    run: Run,
    after: Iterable[Result],
    names: tuple[str, str],
    field: str = "environment",
) -> tuple[Run, Run, Comparison]:
    """Compare what `baseline` found in one environment, or for one device, with `run` in another.

    Models and targets are matched without that `field`, and without the type of weights of a
    device. Of environments, the two runs come back with that one alone. Raises UsageError where
    one has no result for its name.
    """
    old, new = names
    results = list(after)
    olds, news = _only(baseline, before, field, old), _only(run, results, field, new)
    if field == "device":
        # Under one name and type of weights, so that a target of both is one target.
        same = {"device": new, "dtype": records.Dtype.CONFIG}
        compared = compare(baseline, as_on(olds, **same), run, as_on(news, **same), by_place=True)
        lines = (*records.changed("device", old, new), *compared.differences)
        return baseline, run, replace(compared, differences=lines)

    def renamed(side: Run, name: str) -> Run:
        # Under one name, so that a target of both is one target.
        inside = (e for e in side.environments if e.name == name)
        environments = tuple(msgspec.structs.replace(e, name=new) for e in inside)
        return msgspec.structs.replace(side, environments=environments)

    left, right = renamed(baseline, old), renamed(run, new)
    if len(results) >= run.planned:
        # Complete: a model that this environment lacks is not in its Transformers.
        right = msgspec.structs.replace(right, planned=len(news))
    compared = compare(left, as_on(olds, environment=new), right, news, by_place=True)
    return left, right, compared


def as_on(results: Iterable[Result], **target: Any) -> Iterator[Result]:
    """Yield results as if their targets had these fields."""
    for result in results:
        changed_target = msgspec.structs.replace(result.request.target, **target)
        request = msgspec.structs.replace(result.request, target=changed_target)
        yield msgspec.structs.replace(result, request=request)


def _only(run: Run, results: Iterable[Result], field: str, name: str) -> list[Result]:
    """The results whose target has this environment or device. Raises UsageError for none."""
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(getattr(result.request.target, field), []).append(result)
    if name not in by_name:
        where = f"{'for' if field == 'device' else 'in'} {field}"
        known = ", ".join(sorted(by_name))
        raise UsageError(f"run {run.id} has no result {where} {name!r}; it has: {known}")
    return by_name[name]


def differences(baseline: Run, run: Run) -> tuple[str, ...]:
    """What differs between the environments of two runs, and in our own version, as lines."""
    olds, news = ({e.name: e for e in side.environments} for side in (baseline, run))
    lines = [
        line
        for name in olds.keys() & news.keys()
        for line in records.environment_differences(olds[name], news[name])
    ]
    harness = records.changed("compilewatch", baseline.harness_version, run.harness_version)
    return tuple(dict.fromkeys([*sorted(lines), *harness]))


def _causes(baseline: Run, old: Result, run: Run, new: Result) -> tuple[str, ...]:
    """Of one model: its environment, then what of the model or the question differs."""
    lines: list[str] = []
    before, after = (
        next((e for e in side.environments if e.name == result.request.target.environment), None)
        for side, result in ((baseline, old), (run, new))
    )
    if before is not None and after is not None:
        lines += records.environment_differences(before, after)
    lines += records.changed("compilewatch", old.harness_version, new.harness_version)
    lines += records.changed("revision", old.request.model.revision, new.request.model.revision)
    lines += _build_differences(old.request.model.build, new.request.model.build)
    lines += records.changed("tier", old.tier.value, new.tier.value)
    lines += records.changed("depth", old.depth.value, new.depth.value)
    if old.inputs != new.inputs:
        lines.append("other example inputs")
    return tuple(lines)


def _build_differences(old: object, new: object) -> list[str]:
    if old == new:
        return []
    if isinstance(old, records.ConfigBuild) and isinstance(new, records.ConfigBuild):
        return records.changed("configuration", old.config_sha256[:10], new.config_sha256[:10])
    if isinstance(old, records.LibraryBuild) and isinstance(new, records.LibraryBuild):
        if (old.library, old.name) != (new.library, new.name):
            return ["built otherwise"]
        digests = (old.configuration_sha256[:10], new.configuration_sha256[:10])
        return records.changed("configuration", *digests)
    return ["built otherwise"] if type(old) is not type(new) else ["other source"]


def _absence(baseline: Run, run: Run, results: int, old: Result) -> tuple[ChangeKind, str]:
    """Why a run has no result of what its baseline has: four things that must not be mixed up.

    `results` is how many the run has.
    """
    was = f"was {outcome_of(old)}"
    selections = [side.settings.get("selection") for side in (baseline, run)]
    targets = set(map(target_label, run.targets))
    other_selection = selections[0] != selections[1] or baseline.source != run.source
    if other_selection or (targets and target_label(old.request.target) not in targets):
        return ChangeKind.NOT_SELECTED, f"{run.id} selects other models or targets; {was}"
    if results < run.planned and run.state == "running":
        return ChangeKind.PENDING, f"{run.id} is still running; {was}"
    if results < run.planned:
        return ChangeKind.MISSING, f"{run.id} ({run.state}) has no result of it; {was}"
    return ChangeKind.GONE, f"no longer in the source; {was}"


def _by_identity(results: Iterable[Result]) -> dict[Identity, Result]:
    return {(r.request.model.name, r.request.target): r for r in results}


class Regressed(NamedTuple):
    """A result that is worse than an earlier one, and the first run in which it was."""

    result: Result
    since: str


def regressed(view: records.RunView) -> tuple[Regressed, ...]:
    """Return the results that are worse than they were, the most downloaded models first.

    An accepted result, which meets an expectation, is none of them.
    """
    worse = {(c.model, c.target) for c in view.changes if c.kind is ChangeKind.REGRESSION}
    worse_results = []
    for result in view.results:
        if not result.is_verdict or result.expectation is not None:
            continue
        since = _since(result, _verdicts(view, result))
        if since is None and (result.request.model.name, result.request.target) in worse:
            since = ""
        if since is not None:
            worse_results.append(Regressed(result, since or view.run.id))

    def order(one: Regressed) -> tuple[int, str, str]:
        model = one.result.request.model
        return -(model.downloads or 0), model.name, target_label(one.result.request.target)

    return tuple(sorted(worse_results, key=order))


def is_comparable(view: records.RunView) -> bool:
    """Whether there is an earlier verdict on any result, so that none being worse is a finding."""
    return view.baseline is not None or any(_verdicts(view, result) for result in view.results)


def _verdicts(view: records.RunView, result: Result) -> list[records.Earlier]:
    """The earlier verdicts on a model and target, oldest first."""
    key = (result.request.model.name, target_label(result.request.target))
    return [one for one in view.history.get(key, ()) if records.is_verdict(one.status, one.phase)]


def _since(result: Result, earlier: Sequence[records.Earlier]) -> str | None:
    """The run after the last better verdict, or "" for this run; None if none was better."""
    after = ""
    for point in reversed(earlier):
        if BADNESS[point.status] < BADNESS[result.status]:
            return after
        after = point.run
    return None


BADNESS = {Status.PASS: 0, Status.GRAPH_BREAK: 1, Status.MISMATCH: 2, Status.ERROR: 2}
"""Of the statuses that a verdict can have."""


def classify_change(old: Result, new: Result, *, by_place: bool = False) -> Classified:
    """What became of one model and target, with the reason in one line; None for no change.

    A verdict after a forecast is newly tested: they are never compared with each other.
    """
    if old.is_verdict and new.is_verdict:
        worse = BADNESS[new.status] - BADNESS[old.status]
        if worse:
            kind = ChangeKind.REGRESSION if worse > 0 else ChangeKind.FIXED
            return kind, f"{outcome_of(old)} -> {outcome_of(new)}"
        if old.probed or new.probed:  # then the breaks after the first are not known
            return _classify_fullgraph(old, new)
        change = _classify_places(old, new) if by_place else _classify_fingerprints(old, new)
        return change or _classify_fullgraph(old, new) or _classify_compilations(old, new)
    was, now = ((side.is_verdict, side.status in records.FORECASTS) for side in (old, new))
    if was == now == (False, True):
        before, after = outcome_of(old), outcome_of(new)
        kind = ChangeKind.FORECAST_CHANGED
        return (kind, f"{before} -> {after}") if before != after else None
    if was == now:
        return None
    kind = ChangeKind.NEWLY_TESTED if now > was else ChangeKind.NO_LONGER_TESTED
    return kind, f"was {outcome_of(old)}; now {outcome_of(new)}"


def _classify_places(old: Result, new: Result) -> Classified:
    """A break counts as new or gone only where the other side has none at its place."""
    for kind, breaks, others, what in (
        (ChangeKind.REGRESSION, new.breaks, old.breaks, "breaks at a new place"),
        (ChangeKind.FIXED, old.breaks, new.breaks, "no longer breaks"),
    ):
        known = {key for other in others for key in _place_keys(other)}
        # One without a place says nothing.
        alone = [b for b in breaks if b.line > 0 and known.isdisjoint(_place_keys(b))]
        if alone:
            places = sorted(f"{records.reason_label(b)} at {b.file}:{b.line}" for b in alone)
            return kind, f"{what}: {', '.join(places)}"
    return None


def _place_keys(graph_break: records.GraphBreak) -> set[tuple[object, ...]]:
    """The line's number, and its text: torch's own files have it elsewhere in each version."""
    where = (graph_break.file, graph_break.function)
    text = records.source_line(graph_break).strip()
    return {(*where, graph_break.line), *([(*where, text)] if text else [])}


def _classify_fingerprints(old: Result, new: Result) -> Classified:
    olds, news = ({b.fingerprint: b for b in side.breaks} for side in (old, new))
    added = [news[f] for f in news.keys() - olds.keys()]
    removed = [olds[f] for f in olds.keys() - news.keys()]
    distinct = f"{len(olds)} -> {len(news)} distinct graph breaks"
    if len(news) < len(olds):
        return ChangeKind.FIXED, f"{distinct}; gone: {_codes(removed)}"
    if len(news) > len(olds):
        return ChangeKind.REGRESSION, f"{distinct}; new: {_codes(added)}"
    # As many breaks as before, but of another cause: one was traded for a new one. Of the same
    # causes it is one that moved to another function or file.
    codes = {records.reason_label(b) for b in old.breaks}
    foreign = [b for b in added if records.reason_label(b) not in codes]
    if foreign:
        return ChangeKind.REGRESSION, f"{_codes(foreign)} instead of {_codes(removed)}"
    return None


def _classify_fullgraph(old: Result, new: Result) -> Classified:
    if old.fullgraph is None or new.fullgraph is None:
        return None
    if old.fullgraph.accepted and not new.fullgraph.accepted:
        why = new.fullgraph.code or "no reason given"
        return ChangeKind.REGRESSION, f"fullgraph=True no longer accepts it: {why}"
    if new.fullgraph.accepted and not old.fullgraph.accepted:
        return ChangeKind.FIXED, "fullgraph=True now accepts it"
    return None


def _classify_compilations(old: Result, new: Result) -> Classified:
    """Whether the standard trace compiles more often than it did; less often is no change."""
    olds, news = old.traces, new.traces
    rises = [
        f"{label} {olds[name].compilations:,} -> {news[name].compilations:,}"
        for name, label in (("default", "as called"), ("true", "dynamic=True"))
        if name in olds and name in news and news[name].compilations > olds[name].compilations
    ]
    return (ChangeKind.MORE_COMPILATIONS, f"compilations: {', '.join(rises)}") if rises else None


def outcome_of(result: Result) -> str:
    """`graph_break (2: GB0059 …, GB0170 …)`, `error in compile (inductor_error)`."""
    if result.status is Status.PASS:
        return "pass"
    if result.status is Status.GRAPH_BREAK:
        distinct = len({b.fingerprint for b in result.breaks})
        return f"graph_break ({distinct}: {_codes(result.breaks)})"
    if result.status in records.FORECASTS:
        names = _codes(result.missing_lowerings)
        return f"{result.status.value} ({names})" if names else result.status.value
    text = f"{result.status.value} in {result.phase.value}"
    return f"{text} ({result.error.code})" if result.error is not None else text


def _codes(breaks: Sequence[records.GraphBreak]) -> str:
    return ", ".join(sorted({records.reason_label(b) for b in breaks}))


def changed_breaks(
    old: Result, new: Result
) -> tuple[tuple[records.GraphBreak | None, records.GraphBreak | None], ...]:
    """Pairs of breaks that are not on the same line of code in both; None where one side has none.

    Paired are breaks of one fingerprint, then those of one function.
    """
    olds, news = (
        {(b.fingerprint, records.source_line(b).strip() or b.line): b for b in side.breaks}
        for side in (old, new)
    )
    gone = [graph_break for key, graph_break in olds.items() if key not in news]
    added = [graph_break for key, graph_break in news.items() if key not in olds]
    pairs: list[tuple[records.GraphBreak | None, records.GraphBreak | None]] = []
    likenesses: tuple[Callable[[records.GraphBreak], object], ...] = (
        lambda graph_break: graph_break.fingerprint,
        lambda graph_break: (graph_break.file, graph_break.function),
    )
    for alike in likenesses:
        for before in list(gone):
            after = next((one for one in added if alike(one) == alike(before)), None)
            if after is not None:
                pairs.append((before, after))
                gone.remove(before)
                added.remove(after)
    return (*pairs, *((before, None) for before in gone), *((None, after) for after in added))
