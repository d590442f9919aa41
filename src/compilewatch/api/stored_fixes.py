"""Verified fixes that an extra stored with runs."""

from __future__ import annotations

from dataclasses import replace

from compilewatch import extras, plugins
from compilewatch.errors import StoreError
from compilewatch.records import ModelFix, Result
from compilewatch.store import Store, StoredRun


def stored_fixes(stored: StoredRun) -> tuple[tuple[ModelFix, ...], tuple[str, ...]]:
    """Return what is stored of the fixes of a run, and notes on what cannot be read."""
    fixes: list[ModelFix] = []
    notes: list[str] = []
    for _, reference in extras.of_run(stored.path, "fixes"):
        try:
            of_run, problems = plugins.load(reference)(stored)
        except StoreError as error:
            of_run, problems = (), [str(error)]  # the results of the run are readable without it
        fixes += of_run
        notes += problems
    return tuple(fixes), tuple(notes)


def stored_fix_for(store: Store, result: Result) -> ModelFix | None:
    """Return a verified fix of the newest run that has one for the graph breaks of a result.

    One of the same model comes first, then the one that removed most of these graph breaks.
    """
    places = {candidate.fingerprint for candidate in result.breaks}
    name = result.request.model.name

    def worth(fix: ModelFix) -> tuple[bool, int, bool, int]:
        return fix.model == name, len(fix.removed & places), fix.single_graph, -len(fix.changes)

    for stored in store.runs() if places else ():
        fixes = [candidate for candidate in stored_fixes(stored)[0] if candidate.verified]
        if helping := [candidate for candidate in fixes if candidate.removed & places]:
            return replace(max(helping, key=worth), run=stored.run.id)
    return None
