"""What a stored run says, as one object."""

from __future__ import annotations

from compilewatch.analysis.summary import Summary, summarise
from compilewatch.records import Change, Record, Run, RunView
from compilewatch.store import Store


class SweepSummary(Record, frozen=True, kw_only=True):
    """A stored run with its changes; `--json` prints it after a sweep, a merge or a comparison.

    `folder` and `report` are paths, `report` None if the run has no page.
    """

    run: Run
    summary: Summary
    changes: tuple[Change, ...]
    baseline: str | None
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    folder: str
    report: str | None


def summary_of(store: Store, view: RunView) -> SweepSummary:
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
