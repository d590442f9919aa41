"""A stored run, looked at: compared with its baseline, its expectations judged."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from compilewatch.analysis.comparison import between_environments, compare, default_baseline
from compilewatch.errors import StoreError
from compilewatch.plan.expectations import Expectations, stale_note
from compilewatch.records import AttemptCode, Result
from compilewatch.records.views import RunView
from compilewatch.store import Store, StoredRun


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
    if run.missing_shards:
        missing = ", ".join(run.missing_shards)
        notes.append(f"this run is incomplete: merge it again with the missing shards {missing}")
    if len(results) < run.planned:
        notes.append(f"{run.state}: {len(results)} of {run.planned} requests have a result")
    notes += _lost(results)
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


def _lost(results: Iterable[Result]) -> list[str]:
    """What a cluster lost under way in this run, and what became of it."""
    own = [result for result in results if result.reused_from is None]
    notes = []
    losses = {
        AttemptCode.NODE_LOST: "a node of the cluster",
        AttemptCode.CONNECTION_LOST: "the connection to the cluster",
    }
    for loss, what in losses.items():
        again = sum(any(a.code is loss for a in r.attempts) for r in own)
        requests = "1 request was" if again == 1 else f"{again} requests were"
        notes += [f"{requests} asked again: {what} was lost"] if again else []
    return notes


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
