"""Stored runs: their view with changes, what it says as one object, publishing and pruning them.

Sinks see stored runs only; those that a remote sink has not accepted wait in the spool.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from compilewatch import errors, extras, plugins, records
from compilewatch.analysis import comparison
from compilewatch.analysis.summary import Summary, summarise
from compilewatch.config import Settings, value_of, where_to_set
from compilewatch.contract.targets import target_label
from compilewatch.plan import Expectations, stale_note
from compilewatch.records import now
from compilewatch.report import wording
from compilewatch.sinks import ADDRESSES, SINKS, Sink, remote_sinks
from compilewatch.store import Spool, Spooled, Store, StoredRun, run_bytes

RUNS_SHOWN = 20
"""The number of runs in a history or a trend, including the run itself."""

MAX_REJECTIONS = 5
"""After how many rejections by a sink a run is removed from the spool."""


def view(
    store: Store,
    stored: StoredRun,
    *,
    baseline: str | StoredRun | None = None,
    expectations: Expectations | None = None,
) -> records.RunView:
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
        history, trend, damaged = _past(store, run, results, [other.run for other in runs])
        notes += (line for line in damaged if line not in notes)
    except errors.StoreError as error:
        history, trend = {}, ()
        notes.append(f"the history of earlier runs cannot be read: {error}")
    parts, part_notes = _parts(stored, other)
    notes += part_notes
    seen = records.RunView(run=run, results=results, history=history, trend=trend, parts=parts)
    if other is None:
        return replace(seen, notes=tuple(notes))
    compared = comparison.compare(other.run, other.results(), run, results)
    changed = {(change.model, change.target) for change in compared.changes}
    notes += (line for line in other.damaged if line not in notes)
    return replace(
        seen,
        changes=compared.changes,
        baseline=other.run,
        differences=compared.differences,
        notes=tuple(notes),
        before={
            (old.request.model.name, old.request.target): old
            for old in other.results()
            if (old.request.model.name, old.request.target) in changed
        },
    )


def _parts(
    stored: StoredRun, baseline: StoredRun | None
) -> tuple[dict[str, records.RunPart], list[str]]:
    """What extras stored in the run, by their names, and what they note."""
    parts: dict[str, records.RunPart] = {}
    notes: list[str] = []
    for name, part in extras.PARTS.items():
        if not (stored.path / part.file).exists():
            continue
        try:
            parts[name], part_notes = plugins.load(part.view)(stored, baseline)
        except errors.StoreError as error:
            part_notes = [str(error)]  # the results of the run are readable without it
        notes += part_notes
    return parts, notes


def view_between(
    base: StoredRun, stored: StoredRun, names: tuple[str, str], field: str = "environment"
) -> records.RunView:
    """The differences between one environment of `base` and another of `stored`, or two devices.

    Both may be the same run. Raises UsageError if a run has no result for its name.
    """
    results = stored.results()
    baseline, run, compared = comparison.between(
        base.run, base.results(), stored.run, results, names, field
    )
    inside = tuple(r for r in results if getattr(r.request.target, field) == names[1])
    return records.RunView(
        run=msgspec.structs.replace(run, planned=len(inside)),
        results=inside,
        changes=compared.changes,
        baseline=baseline,
        differences=compared.differences,
        notes=tuple(dict.fromkeys([*base.damaged, *stored.damaged])),
    )


def _past(
    store: Store, run: records.Run, results: Sequence[records.Result], runs: Sequence[records.Run]
) -> tuple[
    Mapping[tuple[str, str], tuple[records.Earlier, ...]], tuple[records.TrendPoint, ...], list[str]
]:
    """The history of each model and target, the trend of the run, and the damaged lines of both.

    `runs` come newest first.
    """
    scope, settings = comparison.scope(run), comparison.scope(run, "depth", "tier")
    older = (other for other in runs if other.id < run.id)
    earlier = [other for other in older if comparison.scope(other, "depth", "tier") == settings]
    alike = [o for o in earlier if comparison.may_be_baseline(o) and comparison.scope(o) == scope]
    recent, alike = earlier[: RUNS_SHOWN - 1], alike[: RUNS_SHOWN - 1]
    outcomes, damaged = store.outcomes(list({other.id for other in (*recent, *alike)}))
    here = {(r.request.model.name, target_label(r.request.target)) for r in results}
    history: defaultdict[tuple[str, str], list[records.Earlier]] = defaultdict(list)
    ids = {other.id for other in recent}
    passed, forecasts = Counter[str](), Counter[str]()
    for point in outcomes:
        passed[point.earlier.run] += point.earlier.status is records.Status.PASS
        forecasts[point.earlier.run] += point.earlier.status in records.FORECASTS
        if point.earlier.run in ids and (key := (point.model, point.target)) in here:
            history[key].append(point.earlier)
    passed[run.id] = sum(r.status is records.Status.PASS for r in results)
    forecasts[run.id] = sum(r.status in records.FORECASTS for r in results)
    trend = [
        records.TrendPoint(one.id, passed[one.id], one.planned - forecasts[one.id])
        for one in (*alike[::-1], run)
    ]
    return {key: tuple(points) for key, points in history.items()}, tuple(trend), damaged


def _lost(results: Iterable[records.Result]) -> list[str]:
    """Notes on the requests that ran again because a cluster lost a node or its connection."""
    own = [result for result in results if result.reused_from is None]
    notes = []
    losses = {
        records.AttemptCode.NODE_LOST: "a node of the cluster",
        records.AttemptCode.CONNECTION_LOST: "the connection to the cluster",
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
    chosen = comparison.default_baseline([other.run for other in known.values()], run)
    if chosen is None:
        return None, []
    try:
        known[chosen.id].results()
    except errors.StoreError as error:
        return None, [f"not compared with {chosen.id}: {error}"]
    return known[chosen.id], []


def stored_fixes(stored: StoredRun) -> tuple[tuple[records.ModelFix, ...], tuple[str, ...]]:
    """Return what is stored of the fixes of a run, and notes on what cannot be read."""
    if not (stored.path / extras.PARTS["fixes"].file).exists():
        return (), ()
    try:
        fixes, notes = plugins.load("compilewatch.extras.fixes.run_fixes:fixes_of_run")(stored)
    except errors.StoreError as error:
        return (), (str(error),)  # the results of the run are readable without it
    return tuple(fixes), tuple(notes)


def stored_fix_for(store: Store, result: records.Result) -> records.ModelFix | None:
    """Return a verified fix of the newest run that has one for the graph breaks of a result.

    One of the same model comes first, then the one that removed most of these graph breaks.
    """
    places = {candidate.fingerprint for candidate in result.breaks}
    name = result.request.model.name

    def worth(fix: records.ModelFix) -> tuple[bool, int, bool, int]:
        return fix.model == name, len(fix.removed & places), fix.single_graph, -len(fix.changes)

    for stored in store.runs() if places else ():
        fixes = [candidate for candidate in stored_fixes(stored)[0] if candidate.verified]
        if helping := [candidate for candidate in fixes if candidate.removed & places]:
            return replace(max(helping, key=worth), run=stored.run.id)
    return None


class SweepSummary(records.Record, frozen=True, kw_only=True):
    """A stored run with its changes; `--json` prints it after a sweep, a merge or a comparison.

    `folder` and `report` are paths, `report` None if the run has no page.
    """

    run: records.Run
    summary: Summary
    changes: tuple[records.Change, ...]
    baseline: str | None
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    folder: str
    report: str | None


def summary_of(store: Store, view: records.RunView) -> SweepSummary:
    """Return the summary of a view of a stored run."""
    folder = store.open(view.run.id).path
    page = folder / "report" / "index.html"
    return SweepSummary(
        run=view.run,
        summary=summarise(view),
        changes=view.changes,
        baseline=view.baseline.id if view.baseline else None,
        differences=view.differences,
        notes=view.notes,
        folder=str(folder),
        report=str(page) if page.exists() else None,
    )


@dataclass(frozen=True, kw_only=True)
class Published:
    """One line from each sink that accepted the run, and (sink, why) for those that failed."""

    lines: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{sink} was not {'published to' if sink in ADDRESSES else 'written'}: {why}"
            for sink, why in self.failures
        )


def load_sinks(names: Iterable[str], settings: Settings) -> tuple[Sink, ...]:
    """Import sinks by name. Raises UsageError for a sink that is unknown or has no address."""
    sinks: list[Sink] = []
    for name in names:
        sink_class = plugins.find("sink", SINKS, name)
        if (setting := ADDRESSES.get(name)) and not value_of(settings, setting):
            raise errors.UsageError(f"{name} has no address: set {where_to_set(setting)}")
        sinks.append(sink_class(settings))
    return tuple(sinks)


def check_sinks(settings: Settings) -> None:
    """Raises UsageError if a sink of the settings is unknown or has no address."""
    load_sinks((*settings.sinks, *remote_sinks(settings)), settings)


def publish(store: Store, seen: records.RunView, sinks: Sequence[Sink]) -> Published:
    """Send a run to each sink. A sink that fails does not affect the others.

    Remote sinks also get the runs that wait in the spool, oldest first, so that the Pushgateway
    holds the newest one in the end. Runs that a sink does not accept stay in the spool.
    """
    lines: list[str] = []
    failures: list[tuple[str, str]] = []
    for sink in sinks:
        for line, error in _hand_over(store, seen, sink):
            if error is None:
                lines.append(line)
            else:
                failures.append((sink.name, line))
    return Published(lines=tuple(lines), failures=tuple(failures))


def report_health(store: Store, settings: Settings, published: Published) -> None:
    """Report the state of publication to the Pushgateway, if one is set and it is available."""
    if not settings.pushgateway.url:
        return
    from compilewatch.sinks.pushgateway import push_health

    with contextlib.suppress(errors.SinkError):
        push_health(settings, store.spool, [sink for sink, _ in published.failures])


def _hand_over(
    store: Store, seen: records.RunView, sink: Sink
) -> Iterator[tuple[str, Exception | None]]:
    """Send a run, and to a remote sink those in its spool, in the order in which they started.

    Yields the line that the sink returned for a run, or why it did not accept the run, and why.
    """
    if sink.name not in ADDRESSES:
        yield _sent(store, seen, sink)
        return
    spool = store.spool
    waiting = {spooled.run: spooled for spooled in spool.waiting(sink.name)}
    # It stays in the spool until it is accepted, so a killed process loses nothing.
    mine = waiting.setdefault(seen.run.id, Spooled(run=seen.run.id, since=now()))
    spool.put(sink.name, mine)
    offered: list[StoredRun] = []
    for run_id in waiting:
        try:
            offered.append(store.open(run_id))
        except errors.CompilewatchError as error:
            spool.drop(sink.name, run_id)
            yield f"run {run_id} (spooled) is no longer stored: {error}", error
    for stored in sorted(offered, key=lambda stored: stored.run.started_at):
        spooled = waiting[stored.run.id]
        line, failure = _sent(store, seen if spooled is mine else stored, sink)
        if failure is None:
            spool.delivered(sink.name, spooled.run)
        elif isinstance(failure, errors.SelectionError):
            # Waiting would not change it, and nobody shall replace the models by a retry.
            spool.drop(sink.name, spooled.run)
        else:
            line = f"{line}; {_keep(spool, sink.name, spooled, line, failure)}"
        yield line, failure
        if isinstance(failure, errors.UnreachableError):
            return  # the others would wait for the same unavailable server


def _sent(
    store: Store, run: records.RunView | StoredRun, sink: Sink
) -> tuple[str, Exception | None]:
    spooled = f"run {run.run.id} (spooled): " if isinstance(run, StoredRun) else ""
    try:
        seen = view(store, run) if isinstance(run, StoredRun) else run
        return spooled + sink.publish(seen, store.files(seen.run.id)), None
    except Exception as error:  # noqa: BLE001 -- a plug-in's edge: the run is stored already
        known = isinstance(error, errors.CompilewatchError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        return spooled + " ".join(why.split()), error


def _keep(spool: Spool, sink: str, spooled: Spooled, why: str, failure: Exception) -> str:
    """Keep a run in the spool, unless it was rejected too often; return what to do about it."""
    attempts = spooled.attempts + (not isinstance(failure, errors.UnreachableError))
    again = f"compilewatch publish {spooled.run} --to {sink}"
    if attempts >= MAX_REJECTIONS:
        spool.drop(sink, spooled.run)
        return f"rejected {attempts} times and not tried again; when it is fixed: {again}"
    spool.put(sink, msgspec.structs.replace(spooled, attempts=attempts, why=why))
    return f"kept in the spool; the next publish sends it, or: {again}"


class Candidate(records.Record, frozen=True, kw_only=True):
    """A superseded run that may be deleted, or that must be kept, and why."""

    run: str
    source: str
    state: str
    started_at: str
    bytes: int
    why: str


def review(
    store: Store, *, keep: int | None, days: int | None, now: datetime
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return which runs may be deleted, and which both rules allow but something else needs.

    `keep` allows the deletion of a run that has at least this many newer runs of the same selection
    (see `comparison.scope`) that are finished and complete; at least 1, so that the newest run of
    each selection always stays. `days` allows the deletion of a run that started longer ago.
    Raises StoreError.
    """
    stored = store.runs()
    complete = [one.run for one in stored if comparison.may_be_baseline(one.run)]
    before = now.astimezone(UTC) - timedelta(days=days) if days is not None else None
    superseded: list[Candidate] = []
    held: list[Candidate] = []
    for one in stored:
        run = one.run
        scope = comparison.scope(run)
        newer = sum(other.id > run.id and comparison.scope(other) == scope for other in complete)
        if newer < (keep or 1) or (before and datetime.fromisoformat(run.started_at) >= before):
            continue
        reason = _held(store, one, stored)
        candidate = Candidate(
            run=run.id,
            source=run.source + (f" {run.shard}" if run.shard else ""),
            state=run.state,
            started_at=run.started_at,
            bytes=run_bytes(one.path),
            why=reason or f"{newer} newer of its selection",
        )
        (held if reason else superseded).append(candidate)
    return tuple(superseded), tuple(held)


def prune(store: Store, superseded: Sequence[Candidate]) -> Iterator[str]:
    """Delete runs, which come newest first, and yield the id of each deleted run.

    Raises StoreError, also for a run that is now being written.
    """
    store.clear_deleted()
    for candidate in reversed(superseded):
        store.delete_run(store.open(candidate.run))
        yield candidate.run


def _held(store: Store, one: StoredRun, stored: Sequence[StoredRun]) -> str:
    """Return why a superseded run must be kept, "" if it may be deleted."""
    run = one.run
    if one.path.is_symlink():
        return "a link to another folder"
    if one.is_being_written:
        return "being written"
    if run.id == store.latest_id():
        return "outputs/latest points to it"
    if sinks := store.spool.sinks_of(run.id):
        return f"waits for {', '.join(sinks)}: compilewatch publish {run.id}"
    for other in stored:
        if other.run.baseline == run.id and store.spool.sinks_of(other.run.id):
            return f"the baseline of {other.run.id}, which waits to be published"
    return ""
