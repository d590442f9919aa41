"""A stored run, looked at: compared with its baseline, judged, and handed to the sinks."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from compilewatch.analysis.comparison import between_environments, compare, default_baseline
from compilewatch.analysis.summary import status_counts, summarise
from compilewatch.analysis.view import RunView
from compilewatch.config import Settings
from compilewatch.errors import StoreError, UsageError
from compilewatch.events import Author, Event, RunFinished, SinkFailed
from compilewatch.expectations import Expectations, stale_note
from compilewatch.records import ChangeKind
from compilewatch.sinks import SINKS, Sink
from compilewatch.store import RunWriter, Store, StoredRun

MISSING_SHARDS = "missing_shards"
"""The key of `Run.settings` under which a merged run names the shards it lacks."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the sinks said, a line each, and (sink, why) of those that failed."""

    said: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{sink} was not written: {why}" for sink, why in self.failures)


def view(
    store: Store,
    stored: StoredRun,
    *,
    baseline: str | StoredRun | None = None,
    expectations: Expectations | None = None,
) -> RunView:
    """A stored run with its changes and notes.

    `baseline` is `auto`, `none` or a run; None takes the one the run was compared with when it
    ended. `expectations` are checked for lines that no longer hold.
    """
    run = stored.run
    results = stored.results()
    notes = list(stored.damaged)
    if missing := run.settings.get(MISSING_SHARDS):
        notes.append(f"shards missing from this merge: {', '.join(missing)}")
    if run.state != "finished" and len(results) < run.planned:
        notes.append(f"{run.state}: {len(results)} of {run.planned} requests are answered")
    judged = (expectations or Expectations()).stale(results, run.environments)
    notes += (stale_note(expected, result) for expected, result in judged)
    other, problem = _baseline(store, stored, baseline)
    notes += problem
    if other is None:
        return RunView(run=run, results=results, notes=tuple(notes))
    compared = compare(other.run, other.results(), run, results)
    notes += (f"baseline: {line}" for line in other.damaged)
    return RunView(
        run=run,
        results=results,
        changes=compared.changes,
        baseline=other.run,
        differences=compared.differences,
        notes=tuple(notes),
    )


def view_between(base: StoredRun, stored: StoredRun, names: tuple[str, str]) -> RunView:
    """What differs between one environment in `base` and another in `stored`, maybe one run.

    Raises UsageError where a run has no result in its environment.
    """
    results = stored.results()
    baseline, run, compared = between_environments(
        base.run, base.results(), stored.run, results, names
    )
    held = tuple(r for r in results if r.request.target.environment == names[1])
    return RunView(
        run=msgspec.structs.replace(run, planned=len(held)),
        results=held,
        changes=compared.changes,
        baseline=baseline,
        differences=compared.differences,
        notes=tuple(dict.fromkeys([*base.damaged, *stored.damaged])),
    )


def load_sinks(names: Iterable[str]) -> tuple[Sink, ...]:
    """Import sinks by name. Raises UsageError for one that is not registered."""
    sinks: list[Sink] = []
    for name in names:
        if name not in SINKS:
            raise UsageError(f"no sink {name!r}; known: {', '.join(sorted(SINKS))}")
        module_name, _, class_name = SINKS[name].partition(":")
        made: Any = getattr(importlib.import_module(module_name), class_name)()
        sinks.append(made)
    return tuple(sinks)


def publish(store: Store, seen: RunView, sinks: Sequence[Sink]) -> Published:
    """Hand a run to each sink. One that fails does not keep the others from being tried."""
    write = store.write(seen.run.id)
    said: list[str] = []
    failures: list[tuple[str, str]] = []
    for sink in sinks:
        try:
            said.append(sink.publish(seen, write))
        except Exception as error:  # noqa: BLE001 -- a plug-in's edge: the run is stored already
            why = (
                str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
            )
            failures.append((sink.name, " ".join(why.split())))
    return Published(said=tuple(said), failures=tuple(failures))


def conclude(
    store: Store,
    writer: RunWriter,
    settings: Settings,
    expectations: Expectations,
    *,
    wall_seconds: float | None = None,
) -> RunView:
    """End a run whose plan is done: compare it, log what changed, publish it."""
    run = writer.finish("finished", wall_seconds)
    seen = view(store, store.open(run.id), baseline=settings.baseline, expectations=expectations)
    if seen.baseline is not None:
        seen = replace(seen, run=writer.update(baseline=seen.baseline.id))
    author = Author(seen.run)
    events: list[Event] = []
    if seen.baseline is not None:
        events += (author.changed(change, seen.baseline.id) for change in seen.changes)
    for expected, result in expectations.stale(seen.results, run.environments):
        events.append(author.stale(stale_note(expected, result), result))
    published = publish(store, seen, load_sinks(settings.sinks))
    events += (
        SinkFailed(**author.stamp("error"), sink=sink, detail=why)
        for sink, why in published.failures
    )
    writer.events([*events, _finished(author, seen)])
    return replace(seen, notes=(*seen.notes, *published.notes))


def _baseline(
    store: Store, stored: StoredRun, wanted: str | StoredRun | None
) -> tuple[StoredRun | None, list[str]]:
    """The run to compare with, or none, with a note where it cannot be read."""
    run = stored.run
    if isinstance(wanted, StoredRun):
        return wanted, []
    if wanted == "none" or (wanted is None and run.baseline is None):
        return None, []
    if wanted not in ("auto", None):
        return store.open(wanted), []
    known = {other.run.id: other for other in store.runs()}
    if wanted is None:
        assert run.baseline is not None
        if run.baseline in known:
            return known[run.baseline], []
        return None, [f"the baseline {run.baseline} is no longer in {store.root}"]
    chosen = default_baseline([other.run for other in known.values()], run)
    if chosen is None:
        return None, []
    try:
        known[chosen.id].results()
    except StoreError as error:
        return None, [f"not compared with {chosen.id}: {error}"]
    return known[chosen.id], []


def _finished(author: Author, seen: RunView) -> RunFinished:
    kinds = [change.kind for change in seen.changes]
    return RunFinished(
        **author.stamp(),
        planned=seen.run.planned,
        reused=summarise(seen).reused,
        wall_seconds=round(seen.run.wall_seconds or 0.0, 3),
        statuses={s.value: n for s, n in status_counts(seen.results).items()},
        regressions=kinds.count(ChangeKind.REGRESSION),
        fixed=kinds.count(ChangeKind.FIXED),
        baseline=seen.baseline.id if seen.baseline else None,
    )
