"""The tables that the commands print, and a stored run as a whole."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from compilewatch.analysis import summary
from compilewatch.api.summary import summary_of
from compilewatch.cli import options
from compilewatch.contract.targets import target_label
from compilewatch.records import ChangeKind, Result, Run, RunView, Status
from compilewatch.report import wording
from compilewatch.report.terminal import STYLES, console, plain, plain_table, spaced
from compilewatch.report.wording import OUTCOME_LABELS, ResultGroup, outcome, plural
from compilewatch.store import Store

FAMILIES_SHOWN = 15
REASONS_SHOWN = 8
NOT_PASSING_SHOWN = 10
REASONS_BY_TARGET_SHOWN = 3
REGRESSIONS_SHOWN = 20
FIXED_SHOWN = 10

CHANGE_STYLES = {ChangeKind.REGRESSION: "red", ChangeKind.FIXED: "green"}

HEADINGS = OUTCOME_LABELS | {ResultGroup.GRAPH_BREAK: "breaks", ResultGroup.COMPILE_ERROR: "error"}
"""Short enough for a table of all outcomes on 80 columns."""


def print_view(store: Store, view: RunView, as_json: bool) -> None:
    """Print the tables of a run and the path of its report, or everything as JSON."""
    if as_json:
        options.print_json(summary_of(store, view))
        return
    console().print(summary_table(view))
    folder = store.open(view.run.id).path
    page = folder / "report" / "index.html"
    if page.exists():
        click.echo(f"\nReport: {_near(page)}")
    else:
        click.echo(f"\nRun: {_near(folder)}")


def _near(path: Path) -> Path:
    with contextlib.suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path


def summary_table(view: RunView) -> RenderableType:
    """The end of a sweep: the results that do not pass, changes, notes and headline figures."""
    parts = [
        *_families(view),
        *_targets(view),
        *_reasons(view),
        *_errors(view),
        *_not_run(view),
        *_not_passing(view),
        *_changed(view),
    ]
    notes = plain("\n".join(f"note: {note}" for note in view.notes), "yellow")
    return spaced([*parts, *([notes] if view.notes else []), _headline(view)])


def changes_table(view: RunView) -> RenderableType:
    """Every change against the baseline, regressions first, with what differs between the runs."""
    if view.baseline is None:
        return plain("no baseline to compare with")
    sides = [
        f"{name:9}{run.id}  {run.source}, {run.state}, {plural(run.planned, 'request')} planned"
        for name, run in (("baseline", view.baseline), ("run", view.run))
    ]
    notes = [plain(f"note: {note}", "yellow") for note in _oddities(view, view.baseline)]
    return spaced([plain("\n".join(sides)), *notes, _compared(view), *_change_tables(view, {})])


def _oddities(view: RunView, baseline: Run) -> Iterable[str]:
    """The reasons why a comparison says less than it seems to."""
    run = view.run
    if baseline.id == run.id and not view.differences and baseline.environments == run.environments:
        yield "a run is compared with itself, so nothing can differ"
    if baseline.source != run.source:
        yield f"the sources differ: {baseline.source} and {run.source}"
    elif baseline.settings.get("selection") != run.settings.get("selection"):
        yield "the two runs select different models: only models in both runs can be compared"
    for side in (baseline, run):
        if side.state != "finished":
            yield f"{side.id} is {side.state}: requests without a result are pending or missing"


def runs_table(runs: Sequence[Run], passed: Mapping[str, int]) -> RenderableType:
    """Stored runs, in the order given; `passed` counts the requests that pass, by run id."""
    if not runs:
        return plain("no runs stored yet")
    table = plain_table("Run", "Source", "State", "Passed", "Time", "torch", "transformers", gap=0)
    for column in (table.columns[3], table.columns[4]):
        column.justify = "right"
    for column in table.columns[:5]:
        column.no_wrap = True
    for run in runs:
        table.add_row(
            plain(run.id, "bold"),
            plain(run.source + (f" {run.shard}" if run.shard else "")),
            plain(run.state, "" if run.state == "finished" else "yellow"),
            plain(f"{passed.get(run.id, 0):,}/{run.planned:,}"),
            plain(wording.seconds(run.wall_seconds)),
            plain(", ".join(dict.fromkeys(e.torch for e in run.environments))),
            plain(", ".join(dict.fromkeys(str(e.transformers) for e in run.environments))),
        )
    return table


# --- the summary -------------------------------------------------------------------------------


def _not_passing(view: RunView) -> list[RenderableType]:
    """The most downloaded models that do not pass: the line that breaks or fails, and why."""
    results = [r for r in view.results if outcome(r) not in (ResultGroup.PASS, ResultGroup.NOT_RUN)]
    if not results:
        return []
    # Results with a reviewed expectation come last.
    results.sort(
        key=lambda r: (
            r.expectation is not None,
            -(r.request.model.downloads or 0),
            r.request.model.name,
        )
    )
    several = len(summary.targets_in_order(view.results)) > 1
    table = plain_table("Does not pass", *(["Target"] if several else []), "Result", "Where", "Why")
    for result in results[:NOT_PASSING_SHOWN]:
        kind = outcome(result)
        table.add_row(
            plain(result.request.model.name),
            *([plain(target_label(result.request.target))] if several else []),
            plain(wording.status_words(result), STYLES[kind]),
            plain(wording.first_place(result)),
            plain(wording.first_reason(result)),
        )
    if len(results) > NOT_PASSING_SHOWN:
        table.add_row(plain(f"{len(results) - NOT_PASSING_SHOWN:,} more in the report", "dim"))
    return [table, plain(f"For details, run: {wording.repeat_commands(results[0].request)[1]}")]


def _families(view: RunView) -> list[RenderableType]:
    counts = _counted(view, lambda result: result.request.model.family)
    if all(outcomes.total() == 1 for outcomes in counts.values()):
        return []  # the headline has the same figures
    total = sum(counts.values(), Counter[ResultGroup]())
    shown = list(summary.by_family(view))[:FAMILIES_SHOWN]
    named = [(name, counts[name], "") for name in shown]
    rest = sum(
        (outcomes for name, outcomes in counts.items() if name not in shown), Counter[ResultGroup]()
    )
    if rest:
        others = len(counts) - len(shown)
        named.append((plural(others, "other family", "other families"), rest, "dim"))
    return [_outcome_table("Family", [*named, (f"all {len(counts):,}", total, "bold")])]


def _counted(view: RunView, name: Callable[[Result], str]) -> dict[str, Counter[ResultGroup]]:
    counts: dict[str, Counter[ResultGroup]] = {}
    for result in view.results:
        counts.setdefault(name(result), Counter())[outcome(result)] += 1
    return counts


def _outcome_table(heading: str, lines: Iterable[tuple[str, Counter[ResultGroup], str]]) -> Table:
    """A line for each (name, results by outcome, style), with the outcomes that occur."""
    rows_shown = list(lines)
    kinds = [kind for kind in OUTCOME_LABELS if any(counts[kind] for _, counts, _ in rows_shown)]
    table = plain_table(heading, *(HEADINGS[kind] for kind in kinds))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, counts, style in rows_shown:
        cells = [plain(f"{counts[k]:,}" if counts[k] else "·", STYLES[k]) for k in kinds]
        table.add_row(plain(name, style), *cells)
    return table


def _targets(view: RunView) -> list[RenderableType]:
    """For a run with several targets: verdicts, first failing targets and reasons by target."""
    labels = summary.targets_in_order(view.results)
    if len(labels) < 2:
        return []
    counts = _counted(view, lambda result: target_label(result.request.target))
    parts: list[RenderableType] = [
        _outcome_table("Target", [(label, counts[label], "") for label in labels])
    ]
    firsts = summary.first_failures(summary.matrix_rows(view.results))
    if any(firsts.values()):
        table = plain_table("Fails first in", "Mode", "Models")
        table.columns[2].justify = "right"
        for (way, layer), models in firsts.items():
            table.add_row(plain(layer), plain(way.label), plain(f"{models:,}"))
        parts.append(table)
    return [*parts, *_reasons_by_target(view)]


def _reasons_by_target(view: RunView) -> list[RenderableType]:
    table = plain_table("Target", "Most frequent reasons", "Models", "Downloads")
    for column in table.columns[2:]:
        column.justify = "right"
    for label, reasons in summary.reasons_by_target(view).items():
        for number, reason in enumerate(reasons[:REASONS_BY_TARGET_SHOWN]):
            table.add_row(
                plain("" if number else label),
                plain(reason.words),
                plain(f"{reason.models:,}"),
                plain(wording.quantity(reason.downloads)),
            )
    return [table] if table.rows else []


def _reasons(view: RunView) -> list[RenderableType]:
    reasons = summary.top_reasons(view.results)
    if not reasons:
        return []
    table = plain_table("Reasons of graph breaks", "Models", "Downloads", "Breaks")
    for column in table.columns[1:]:
        column.justify = "right"
    for reason in reasons[:REASONS_SHOWN]:
        table.add_row(
            plain(reason.label),
            plain(f"{reason.models:,}"),
            plain(wording.quantity(reason.downloads)),
            plain(f"{reason.occurrences:,}"),
        )
    if len(reasons) > REASONS_SHOWN:
        table.add_row(plain(f"{len(reasons) - REASONS_SHOWN} more in the report", "dim"))
    return [table]


def _errors(view: RunView) -> list[RenderableType]:
    # Unsupported requests are listed with their reason in `_not_run`.
    errors = [row for row in summary.errors(view) if row[1] != Status.UNSUPPORTED.value]
    if not errors:
        return []
    table = plain_table("Errors", "Phase", "Requests")
    table.columns[2].justify = "right"
    for phase, code, requests in errors[:REASONS_SHOWN]:
        table.add_row(plain(code), plain(phase), plain(f"{requests:,}"))
    return [table]


def _not_run(view: RunView) -> list[RenderableType]:
    """Why requests were not run, and which command helps."""
    reasons = Counter(r.detail for r in view.results if outcome(r) is ResultGroup.NOT_RUN)
    table = plain_table("Requests not run", "Why")
    for reason, requests in reasons.most_common(REASONS_SHOWN):
        table.add_row(plain(f"{requests:,}"), plain(reason))
    return [table] if reasons else []


def _changed(view: RunView) -> list[RenderableType]:
    if view.baseline is None:
        return []
    limits = dict.fromkeys(ChangeKind, 0)
    limits |= {ChangeKind.REGRESSION: REGRESSIONS_SHOWN, ChangeKind.FIXED: FIXED_SHOWN}
    return [_compared(view), *_change_tables(view, limits)]


def _compared(view: RunView) -> Text:
    assert view.baseline is not None
    counts = Counter(change.kind for change in view.changes)
    words = [
        plural(counts[ChangeKind.REGRESSION], "regression"),
        f"{counts[ChangeKind.FIXED]} fixed",
    ]
    words += [
        f"{counts[kind]} {kind.value.replace('_', ' ')}"
        for kind in ChangeKind
        if counts[kind] and kind not in CHANGE_STYLES
    ]
    line = plain(f"compared with {view.baseline.id}: {', '.join(words)}", "bold")
    if view.differences:
        line.append_text(plain(f"\nthe runs differ in {'; '.join(view.differences)}", "dim"))
    return line


def _change_tables(view: RunView, limits: dict[ChangeKind, int]) -> Iterable[RenderableType]:
    for kind, label in wording.CHANGE_LABELS.items():
        changes = [change for change in view.changes if change.kind is kind]
        limit = limits.get(kind, len(changes))
        if not changes or not limit:
            continue
        table = plain_table(label, "Target", "Why")
        for change in changes[:limit]:
            # The differences between the runs are printed once, above the tables.
            causes = [cause for cause in change.causes if cause not in view.differences]
            table.add_row(
                plain(change.model, CHANGE_STYLES.get(kind, "")),
                plain(target_label(change.target)),
                plain("; ".join((change.reason, *causes))),
            )
        if len(changes) > limit:
            table.add_row(plain(f"{len(changes) - limit} more in the report", "dim"))
        yield table


def _headline(view: RunView) -> Text:
    figures = summary.summarise(view)
    line = plain(wording.headline(view), "bold")
    lines = [
        f"\ncoverage {wording.percent(figures.coverage)}: "
        f"{plural(figures.verdicts, 'verdict')} for {plural(figures.planned, 'planned request')}"
    ]
    if repositories := wording.repository_words(view):
        lines.append(f"\n{repositories}")
    cost = [f"\n{wording.percent(figures.reused_share)} of the results reused"]
    if figures.overhead is not None:
        cost.append(f"overhead {figures.overhead:.2f}")
    if view.run.wall_seconds is not None:
        jobs = plural(view.run.jobs, "job")
        cost.append(f"{wording.seconds(view.run.wall_seconds)} with {jobs}")
    line.append_text(plain("".join(lines) + "; ".join(cost)))
    if figures.missing:
        verb = "has" if 1 in (figures.missing, figures.planned) else "have"
        planned = plural(figures.planned, "planned request")
        missing = f"{figures.missing:,} of {planned} {verb} no result"
        line.append_text(plain(f"\n{missing}: not run is not passed", "bold yellow"))
    return line
