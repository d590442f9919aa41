"""The view of a stored run: compared with its baseline, and with its expectations checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from compilewatch import extras, plugins
from compilewatch.analysis.comparison import (
    between_devices,
    between_environments,
    changed_breaks,
    compare,
    default_baseline,
    may_be_baseline,
    same_settings,
    scope,
)
from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.plan import Expectations, stale_note
from compilewatch.records import (
    AttemptCode,
    Change,
    Earlier,
    Phase,
    Result,
    Run,
    RunPart,
    RunView,
    Status,
    Target,
    TrendPoint,
)
from compilewatch.report import wording
from compilewatch.store import Store, StoredRun

RUNS_SHOWN = 20
"""The number of runs in a history or a trend, including the run itself."""


def view(
    store: Store,
    stored: StoredRun,
    *,
    baseline: str | StoredRun | None = None,
    expectations: Expectations | None = None,
) -> RunView:
    """A stored run with its changes and notes.

    `baseline` is `auto`, `none` or a run; None means the baseline with which the run was compared
    when it ended. `expectations` are checked for lines that no longer apply.
    """
    run = stored.run
    results = stored.results()
    notes = list(stored.damaged)
    if run.missing_shards:
        missing = ", ".join(run.missing_shards)
        notes.append(f"this run is incomplete: merge it again with the missing shards {missing}")
    if len(results) < run.planned:
        planned = wording.plural(run.planned, "planned request")
        verb = "has" if 1 in (len(results), run.planned) else "have"
        notes.append(f"the run is {run.state}: {len(results):,} of {planned} {verb} a result")
    notes += _lost(results)
    judged = (expectations or Expectations()).stale(results, run.environments)
    notes += (stale_note(expected, result) for expected, result in judged)
    runs = store.runs()
    other, problem = _baseline(store, stored, baseline, runs)
    notes += problem
    try:
        history, trend, damaged = _past(
            store, run, results, [earlier_run.run for earlier_run in runs]
        )
        notes += (line for line in damaged if line not in notes)
    except StoreError as error:
        history, trend = {}, ()
        notes.append(f"the history of earlier runs cannot be read: {error}")
    parts, part_notes = _parts(stored, other)
    notes += part_notes
    seen = RunView(run=run, results=results, history=history, trend=trend, parts=parts)
    if other is None:
        return replace(seen, notes=tuple(notes))
    compared = compare(other.run, other.results(), run, results)
    notes += (line for line in other.damaged if line not in notes)
    return replace(
        seen,
        changes=compared.changes,
        baseline=other.run,
        differences=compared.differences,
        notes=tuple(notes),
        before=_before(other.results(), results, compared.changes),
    )


def _parts(stored: StoredRun, baseline: StoredRun | None) -> tuple[dict[str, RunPart], list[str]]:
    """What extras stored in the run, by their names, and what they note."""
    parts: dict[str, RunPart] = {}
    notes: list[str] = []
    for name, reference in extras.of_run(stored.path, "view"):
        try:
            parts[name], part_notes = plugins.load(reference)(stored, baseline)
        except StoreError as error:
            part_notes = [str(error)]  # the results of the run are readable without it
        notes += part_notes
    return parts, notes


def view_between(base: StoredRun, stored: StoredRun, names: tuple[str, str]) -> RunView:
    """The differences between one environment of `base` and another of `stored`.

    Both may be the same run. Raises UsageError if a run has no result in its environment.
    """
    results = stored.results()
    baseline, run, compared = between_environments(
        base.run, base.results(), stored.run, results, names
    )
    inside = tuple(r for r in results if r.request.target.environment == names[1])
    return RunView(
        run=msgspec.structs.replace(run, planned=len(inside)),
        results=inside,
        changes=compared.changes,
        baseline=baseline,
        differences=compared.differences,
        notes=tuple(dict.fromkeys([*base.damaged, *stored.damaged])),
    )


def view_between_devices(base: StoredRun, stored: StoredRun, names: tuple[str, str]) -> RunView:
    """The differences between what `base` found for one device and `stored` for another.

    Both may be the same run. Raises UsageError if a run has no result for its device.
    """
    results = stored.results()
    compared = between_devices(base.run, base.results(), stored.run, results, names)
    inside = tuple(r for r in results if r.request.target.device == names[1])
    return RunView(
        run=msgspec.structs.replace(stored.run, planned=len(inside)),
        results=inside,
        changes=compared.changes,
        baseline=base.run,
        differences=compared.differences,
        notes=tuple(dict.fromkeys([*base.damaged, *stored.damaged])),
    )


def _before(
    olds: Iterable[Result], news: Iterable[Result], changes: Iterable[Change]
) -> dict[tuple[str, Target], Result]:
    """The results of the baseline with a change, or whose breaks are at different code now."""
    changed = {(change.model, change.target) for change in changes}
    after = {(r.request.model.name, r.request.target): r for r in news}
    before = {(r.request.model.name, r.request.target): r for r in olds}
    return {
        key: old
        for key, old in before.items()
        if key in changed or (key in after and changed_breaks(old, after[key]))
    }


def _past(
    store: Store, run: Run, results: Sequence[Result], runs: Sequence[Run]
) -> tuple[Mapping[tuple[str, str], tuple[Earlier, ...]], tuple[TrendPoint, ...], list[str]]:
    """The history of each model and target, the trend of the run, and the damaged lines of both.

    `runs` come newest first.
    """
    earlier = [other for other in runs if other.id < run.id and same_settings(run, other)]
    alike = [other for other in earlier if may_be_baseline(other) and scope(other) == scope(run)]
    recent, alike = earlier[: RUNS_SHOWN - 1], alike[: RUNS_SHOWN - 1]
    outcomes, damaged = store.outcomes(list({other.id for other in (*recent, *alike)}))
    here = {(r.request.model.name, target_label(r.request.target)) for r in results}
    history: defaultdict[tuple[str, str], list[Earlier]] = defaultdict(list)
    ids = {other.id for other in recent}
    passed: Counter[str] = Counter()
    for point in outcomes:
        passed[point.run] += point.status == Status.PASS
        if point.run in ids and (key := (point.model, point.target)) in here:
            history[key].append(Earlier(point.run, Status(point.status), Phase(point.phase)))
    counts = [(other, passed[other.id]) for other in reversed(alike)]
    counts.append((run, sum(r.status is Status.PASS for r in results)))
    trend = (
        TrendPoint(run=point.id, started_at=point.started_at, passed=number, planned=point.planned)
        for point, number in counts
    )
    return {key: tuple(points) for key, points in history.items()}, tuple(trend), damaged


def _lost(results: Iterable[Result]) -> list[str]:
    """Notes on the requests that ran again because a cluster lost a node or its connection."""
    own = [result for result in results if result.reused_from is None]
    notes = []
    losses = {
        AttemptCode.NODE_LOST: "a node of the cluster",
        AttemptCode.CONNECTION_LOST: "the connection to the cluster",
    }
    for loss, what in losses.items():
        again = sum(any(a.code is loss for a in r.attempts) for r in own)
        requests = "1 request was" if again == 1 else f"{again} requests were"
        notes += [f"{requests} evaluated again because {what} was lost"] if again else []
    return notes


def _baseline(
    store: Store, stored: StoredRun, reference: str | StoredRun | None, runs: Sequence[StoredRun]
) -> tuple[StoredRun | None, list[str]]:
    """The run to compare with, or None, and a note if it cannot be read."""
    run = stored.run
    if isinstance(reference, StoredRun):
        return reference, []
    if reference == "none" or (reference is None and run.baseline is None):
        return None, []
    if reference not in ("auto", None):
        return store.open(reference), []
    known = {other.run.id: other for other in runs}
    if reference is None:
        assert run.baseline is not None
        if run.baseline in known:
            return known[run.baseline], []
        return None, [
            f"the baseline {run.baseline} has been deleted from {store.root}: the run is shown and "
            "published without changes; name another run with --baseline"
        ]
    chosen = default_baseline([other.run for other in known.values()], run)
    if chosen is None:
        return None, []
    try:
        known[chosen.id].results()
    except StoreError as error:
        return None, [f"not compared with {chosen.id}: {error}"]
    return known[chosen.id], []
