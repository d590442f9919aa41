"""`compilewatch fix --all-of RUN`: the work on a stored run, and what it prints."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType

from compilewatch.analysis.leverage import VerifiedTotal, verified_total
from compilewatch.analysis.summary import downloads_of
from compilewatch.cli import options
from compilewatch.config import Settings
from compilewatch.errors import StoreError
from compilewatch.extras.fixes.fixing import Limits, searching
from compilewatch.extras.fixes.of_run.driver import FixProgress, RunSearch
from compilewatch.extras.fixes.of_run.view import FILE, Case, FixJournal, cases_of, model_fix
from compilewatch.extras.fixes.records import FixOrigin, FixStatus, RunFix
from compilewatch.extras.fixes.text import status_text
from compilewatch.report.terminal import console, plain, plain_table, spaced
from compilewatch.report.wording import plural, quantity, verified_total_words
from compilewatch.store import Store, StoredRun


@dataclass(frozen=True, kw_only=True)
class RunFixSummary:
    """The fixes of a run: models and targets by state with their downloads, and what they give.

    `places` are the distinct fingerprints of the graph breaks, `removed` those that a verified fix
    removes from one model at least. `searches` counts the searches; the others got by with changes
    that were known. `seconds` is the time of all searches and trials together.
    """

    run: str
    states: Mapping[FixStatus, int]
    downloads: Mapping[FixStatus, int | None]
    places: int
    removed: int
    searches: int
    evaluations: int
    seconds: float
    total: VerifiedTotal | None
    fixes: tuple[RunFix, ...]
    notes: tuple[str, ...] = ()


def fix_run(
    reference: str,
    settings: Settings,
    *,
    limits: Limits,
    max_seconds: float | None,
    rewrites: bool,
    as_json: bool,
) -> int:
    """Search for the fixes of a run, store and print them; return the exit status."""
    store = Store(Path(settings.output_dir))
    stored = store.open(reference)
    cases, notes = cases_of(stored.results())
    journal = FixJournal(stored.path)
    reuse(store, stored, cases, limits)
    with FixProgress() as progress:
        search = RunSearch(
            cases=cases,
            journal=journal,
            progress=progress,
            limits=limits,
            max_seconds=max_seconds,
            rewrites=rewrites,
        )
        if search.begin():
            work(search, cases, settings)
    summary = summarised(stored, cases, notes)
    if as_json:
        options.print_json(summary)
    else:
        console().print(summary_text(summary))
    return exit_status(summary)


def reuse(store: Store, stored: StoredRun, cases: Sequence[Case], limits: Limits) -> None:
    """Copy what other runs have for the same models, versions and code into the run."""
    journal = FixJournal(stored.path)
    for other in store.runs():
        if other.path != stored.path and (other.path / FILE).exists():
            with contextlib.suppress(StoreError):  # what cannot be read is searched again
                journal.adopt(FixJournal(other.path), (case.key for case in cases), limits)


def work(search: RunSearch, cases: Sequence[Case], settings: Settings) -> None:
    """Let as many finders as the settings have jobs work on each environment of the run."""
    for environment in dict.fromkeys(case.request.target.environment for case in cases):
        with contextlib.ExitStack() as stack:
            finders = [
                stack.enter_context(searching(settings, environment, alone=settings.jobs == 1))
                for _ in range(settings.jobs)
            ]
            search.run(finders, environment)


def summarised(stored: StoredRun, cases: Sequence[Case], notes: Sequence[str]) -> RunFixSummary:
    """Return what is stored for these cases; one without a line is `not_searched`."""
    by_key, damaged = FixJournal(stored.path).read()
    by_state: dict[FixStatus, list[Case]] = {
        state: [] for state in FixStatus if state is not FixStatus.NO_BREAK
    }
    for case in cases:
        of_state = by_key.get(case.key)
        by_state[of_state.fix.status if of_state is not None else FixStatus.NOT_SEARCHED].append(
            case
        )
    fixes = tuple(by_key[case.key] for case in cases if case.key in by_key)
    shown = [model_fix(run_fix) for run_fix in fixes]
    removed = {place for run_fix in shown for place in run_fix.removed}
    places = {place for case in cases for place in case.places}
    return RunFixSummary(
        run=stored.run.id,
        states={state: len(of_state) for state, of_state in by_state.items()},
        downloads={
            state: downloads_of(case.request.model for case in of_state)
            for state, of_state in by_state.items()
        },
        places=len(places),
        removed=len(places & removed),
        searches=sum(run_fix.origin is FixOrigin.SEARCH for run_fix in fixes),
        evaluations=sum(len(run_fix.fix.trials) for run_fix in fixes),
        seconds=round(sum(run_fix.fix.seconds for run_fix in fixes), 1),
        total=verified_total([case.result for case in cases], shown),
        fixes=fixes,
        notes=(*damaged, *notes),
    )


def exit_status(summary: RunFixSummary) -> int:
    """0 if all have a single graph, verified; 3 if a limit left some; 1 for anything else."""
    if summary.states[FixStatus.NOT_SEARCHED]:
        return 3
    verified = summary.states[FixStatus.VERIFIED]
    return 0 if verified == sum(summary.states.values()) else 1


def summary_text(summary: RunFixSummary) -> RenderableType:
    """What `fix --all-of` prints at its end."""
    table = plain_table("Graph breaks", "Models", "Downloads")
    for column in table.columns[1:]:
        column.justify = "right"
    for state, count in summary.states.items():
        if count:
            table.add_row(
                status_text(state), plain(f"{count:,}"), plain(quantity(summary.downloads[state]))
            )
    parts: list[RenderableType] = [table]
    if summary.total is not None and summary.total.changes:
        changes = plain_table("Part of verified fixes", "Models")
        changes.columns[1].justify = "right"
        for change in summary.total.changes:
            changes.add_row(plain(change.name), plain(f"{change.models:,}"))
        parts.append(changes)
    lines = [plain(f"note: {note}", "yellow") for note in summary.notes]
    if summary.total is not None:
        lines.append(plain(verified_total_words(summary.total), "bold"))
    counts = (
        f"{summary.removed:,} of {plural(summary.places, 'place')} removed",
        plural(summary.searches, "search", "searches"),
        plural(summary.evaluations, "evaluation"),
        f"{summary.seconds:,.0f} s",
    )
    lines.append(plain("; ".join(counts), "dim"))
    return spaced([*parts, Group(*lines)])
