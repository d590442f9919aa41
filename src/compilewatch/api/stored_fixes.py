"""Verified fixes that an extra stored with runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compilewatch import extras, plugins
from compilewatch.errors import StoreError
from compilewatch.records import Result
from compilewatch.records.views import ModelFix
from compilewatch.store import Store, StoredRun


@dataclass(frozen=True, kw_only=True)
class StoredFix:
    """A verified fix of a stored run for graph breaks of another result.

    `covered` are the fingerprints of that result which the fix removed from the model `fix.model`.
    """

    run: str
    fix: ModelFix
    covered: frozenset[str]


def stored_fixes(stored: StoredRun) -> tuple[tuple[ModelFix, ...], tuple[str, ...]]:
    """Return what is stored of the fixes of a run, and notes on what cannot be read."""
    fixes: list[ModelFix] = []
    notes: list[str] = []
    for _, reference in extras.of_run(stored.path, "fixes"):
        try:
            found, said = plugins.load(reference)(stored)
        except StoreError as error:
            found, said = (), [str(error)]  # the results of the run are readable without it
        fixes += found
        notes += said
    return tuple(fixes), tuple(notes)


def stored_fix_for(store: Store, result: Result) -> StoredFix | None:
    """Return a verified fix of the newest run that has one for the graph breaks of a result.

    One of the same model comes first, then the one that removed most of these graph breaks.
    """
    wanted = {each.fingerprint for each in result.breaks}
    if not wanted:
        return None
    name = result.request.model.name
    for stored in store.runs():
        candidates = list(_of_run(stored, wanted))
        if candidates:
            return max(candidates, key=lambda each: (each.fix.model == name, *_worth(each)))
    return None


def _worth(found: StoredFix) -> tuple[int, bool, int]:
    return len(found.covered), found.fix.single_graph, -len(found.fix.changes)


def _of_run(stored: StoredRun, wanted: set[str]) -> Iterator[StoredFix]:
    fixes: Sequence[ModelFix] = stored_fixes(stored)[0]
    for fix in fixes:
        covered = frozenset(wanted & fix.removed)
        if fix.verified and covered:
            yield StoredFix(run=stored.run.id, fix=fix, covered=covered)
