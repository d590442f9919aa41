"""The tables that the commands print, and a stored run as a whole."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compilewatch.analysis import summary
from compilewatch.analysis.leverage import FixableCause, Leverage, VerifiedFixes
from compilewatch.api.publish import summary_of
from compilewatch.cli import options
from compilewatch.contract.targets import target_label
from compilewatch.records import FORECASTS, ChangeKind, ModelFix, Result, Run, RunView, Status
from compilewatch.report import terminal, wording
from compilewatch.report.terminal import STYLES, code, plain, spaced, table
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
HEADINGS |= wording.FORECAST_GROUPS
"""Short enough for a table of all outcomes on 80 columns."""


def print_view(store: Store, view: RunView, as_json: bool) -> None:
    """Print the tables of a run and the path of its report, or everything as JSON."""
    if as_json:
        options.print_json(summary_of(store, view))
        return
    terminal.console().print(summary_table(view))
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


def runs_table(runs: Sequence[Run], counts: Counter[tuple[str, Status]]) -> RenderableType:
    """Stored runs, in the order given; `counts` has the results by run id and status."""
    if not runs:
        return plain("no runs stored yet")
    filled = table(
        ("Run", "Source", "State", ">Passed", ">Time", "torch", "transformers"),
        (
            (
                (run.id, "bold"),
                run.source + (f" {run.shard}" if run.shard else ""),
                (run.state, "" if run.state == "finished" else "yellow"),
                f"{counts[run.id, Status.PASS]:,}/"
                f"{run.planned - sum(counts[run.id, status] for status in FORECASTS):,}",
                wording.seconds(run.wall_seconds),
                ", ".join(dict.fromkeys(e.torch for e in run.environments)),
                ", ".join(dict.fromkeys(str(e.transformers) for e in run.environments)),
            )
            for run in runs
        ),
        gap=0,
    )
    for column in filled.columns[:5]:
        column.no_wrap = True
    return filled


# --- the summary -------------------------------------------------------------------------------


def _not_passing(view: RunView) -> list[RenderableType]:
    """The most downloaded models that do not pass: the line that breaks or fails, and why."""
    left_out = {ResultGroup.PASS, ResultGroup.NOT_RUN, *wording.FORECAST_GROUPS}
    results = [r for r in view.results if outcome(r) not in left_out]
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
    filled = table(
        ("Does not pass", *(["Target"] if several else []), "Result", "Where", "Why"),
        (
            (
                result.request.model.name,
                *([target_label(result.request.target)] if several else []),
                (wording.status_words(result), STYLES[outcome(result)]),
                wording.first_place(result),
                wording.first_reason(result),
            )
            for result in results[:NOT_PASSING_SHOWN]
        ),
        more=len(results) - NOT_PASSING_SHOWN,
    )
    return [filled, plain(f"For details, run: {wording.repeat_commands(results[0].request)[1]}")]


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
    lines = list(lines)
    kinds = [kind for kind in OUTCOME_LABELS if any(counts[kind] for _, counts, _ in lines)]
    return table(
        (heading, *(f">{HEADINGS[kind]}" for kind in kinds)),
        (
            ((name, style), *((f"{counts[k]:,}" if counts[k] else "·", STYLES[k]) for k in kinds))
            for name, counts, style in lines
        ),
    )


def _targets(view: RunView) -> list[RenderableType]:
    """For a run with several targets: verdicts, first failing targets and reasons by target."""
    labels = summary.targets_in_order(view.results)
    if len(labels) < 2:
        return []
    counts = _counted(view, lambda result: target_label(result.request.target))
    parts = [_outcome_table("Target", [(label, counts[label], "") for label in labels])]
    firsts = summary.first_failures(summary.matrix_rows(view.results))
    if any(firsts.values()):
        failing = ((layer, way.label, f"{models:,}") for (way, layer), models in firsts.items())
        parts.append(table(("Fails first in", "Mode", ">Models"), failing))
    reasons = [
        (
            "" if number else label,
            reason.words,
            f"{reason.models:,}",
            wording.quantity(reason.downloads),
        )
        for label, reasons in summary.reasons_by_target(view).items()
        for number, reason in enumerate(reasons[:REASONS_BY_TARGET_SHOWN])
    ]
    headings = ("Target", "Most frequent reasons", ">Models", ">Downloads")
    return [*parts, *([table(headings, reasons)] if reasons else [])]


def _reasons(view: RunView) -> list[RenderableType]:
    """The reasons of graph breaks, and the operators for which Neuron must be asked first."""
    forecasts = [result for result in view.results if result.is_forecast]
    tables: list[RenderableType] = []
    for operators, results, *headings in (
        (False, view.results, "Reasons of graph breaks", ">Breaks"),
        (True, forecasts, "Operators without a lowering (forecast)", ">Calls"),
    ):
        reasons = summary.top_reasons(results, operators=operators)
        lines = (
            (
                reason.label,
                f"{reason.models:,}",
                wording.quantity(reason.downloads),
                f"{reason.occurrences:,}",
            )
            for reason in reasons[:REASONS_SHOWN]
        )
        columns = (headings[0], ">Models", ">Downloads", headings[1])
        tables += [table(columns, lines, more=len(reasons) - REASONS_SHOWN)] if reasons else []
    return tables


def _errors(view: RunView) -> list[RenderableType]:
    # Unsupported requests are listed with their reason in `_not_run`.
    errors = [row for row in summary.errors(view) if row[1] != Status.UNSUPPORTED.value]
    lines = ((code, phase, f"{requests:,}") for phase, code, requests in errors[:REASONS_SHOWN])
    return [table(("Errors", "Phase", ">Requests"), lines)] if errors else []


def _not_run(view: RunView) -> list[RenderableType]:
    """Why requests were not run, and which command helps."""
    reasons = Counter(r.detail for r in view.results if outcome(r) is ResultGroup.NOT_RUN)
    lines = ((f"{requests:,}", why) for why, requests in reasons.most_common(REASONS_SHOWN))
    return [table(("Requests not run", "Why"), lines)] if reasons else []


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
        if changes and limit:
            # The differences between the runs are printed once, above the tables.
            lines = (
                (
                    (change.model, CHANGE_STYLES.get(kind, "")),
                    target_label(change.target),
                    "; ".join(
                        (change.reason, *(c for c in change.causes if c not in view.differences))
                    ),
                )
                for change in changes[:limit]
            )
            yield table((label, "Target", "Why"), lines, more=len(changes) - limit)


def _headline(view: RunView) -> Text:
    figures = summary.summarise(view)
    line = plain(wording.headline(view), "bold")
    asked = figures.planned_verdicts
    lines = [
        f"\ncoverage {wording.percent(figures.coverage)}: "
        f"{plural(figures.verdicts, 'verdict')} for {plural(asked, 'planned request')}"
    ] * (figures.coverage is not None)
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


# --- what to fix first, and stored fixes ---------------------------------------------------------


def fixes_table(leverage: Leverage, verified: VerifiedFixes | None = None) -> RenderableType:
    """The steps, best first, between what breaks and what the columns mean.

    With `verified`, another column names the changes that are verified for each step.
    """
    heading = plain(wording.leverage_headline(leverage), "bold")
    if not leverage.broken:
        return heading
    columns = ("Verified fix",) if verified is not None else ()
    steps = table(
        (">", ">Models", ">Downloads", ">In all", ">At most", "Fix", *columns),
        (
            (
                f"{number}.",
                (wording.gain(fix), "bold green"),
                wording.quantity(fix.downloads),
                f"{fix.total_models:,}",
                f"{fix.affected:,}",
                Group(
                    *(_cause(cause, place > 0) for place, cause in enumerate(fix.causes)),
                    plain(f"such as {fix.models[0]}", "dim"),
                ),
                *_verified(verified, number),
            )
            for number, fix in enumerate(leverage.fixes, start=1)
        ),
    )
    lines = [plain(line, "dim") for line in wording.leverage_notes(leverage)]
    if verified is not None:
        lines.append(plain(wording.verified_total_words(verified.total), "bold"))
    return spaced([heading, *([steps] if leverage.fixes else []), Group(*lines)])


def _verified(verified: VerifiedFixes | None, number: int) -> list[RenderableType]:
    if verified is None:
        return []
    step = verified.steps[number - 1]
    return [plain(wording.step_fix_words(step), "green" if step is not None else "dim")]


def _cause(cause: FixableCause, further: bool) -> RenderableType:
    lines = [plain(("and " if further else "") + cause.label, "yellow"), plain(cause.place)]
    if cause.places > 1:
        lines.append(plain(f"and {plural(cause.places - 1, 'other place')}"))
    elif cause.source:
        lines.append(plain(f"> {cause.source}", "dim"))
    return Group(*lines)


def stored_fix_text(fix: ModelFix, result: Result) -> RenderableType:
    """A verified fix of a stored run for graph breaks of a result, with a note of its origin."""
    name = result.request.model.name
    breaks = {graph_break.fingerprint for graph_break in result.breaks}
    what = f"{len(fix.removed & breaks)} of {plural(len(breaks), 'graph break')}"
    origin = f"From run {fix.run}, where it is verified for {fix.model}; it removes {what}."
    if fix.model != name:
        _, explain, _ = wording.repeat_commands(result.request)
        origin += f" For {name} nothing is verified: {explain.replace('explain', 'fix', 1)}"
    heading = plain("Stored fix: ", "bold")
    heading.append_text(plain(" and ".join(fix.changes), "bold green"))
    return Group(heading, plain(origin, "dim"), code(fix.code))
