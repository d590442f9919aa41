"""What verbs print: pure functions from stored results to rich renderables.

Everything that comes from a model, a path or a traceback goes through `_text`: rich would read
`[red]` in it as markup and a terminal would obey an escape sequence. Nothing here expands to the
width of the console, so that `console()` can give piped output all the room it needs: a fact that
was cut off or folded cannot be searched for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import IO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from compilewatch.analysis import summary
from compilewatch.analysis.reasons import reason_label, source_line
from compilewatch.analysis.view import RunView
from compilewatch.cli.excerpt import Excerpt, SourceLine
from compilewatch.records import ChangeKind, GraphBreak, Result, Run, target_label
from compilewatch.sinks import wording
from compilewatch.sinks.wording import OUTCOME_LABELS, Outcome, outcome

FAMILIES_SHOWN = 15
REASONS_SHOWN = 8
REASONS_BY_DOWNLOADS_SHOWN = 5
REGRESSIONS_SHOWN = 20
FIXED_SHOWN = 10
ERROR_LINES_SHOWN = 12
UNLIMITED_WIDTH = 10_000

STYLES: dict[Outcome, str] = {
    Outcome.PASS: "green",
    Outcome.GRAPH_BREAK: "yellow",
    Outcome.MISMATCH: "magenta",
    Outcome.COMPILE_ERROR: "red",
    Outcome.NO_VERDICT: "bright_red",
    Outcome.NOT_RUN: "dim",
}

CHANGE_STYLES = {ChangeKind.REGRESSION: "red", ChangeKind.FIXED: "green"}

HEADINGS = OUTCOME_LABELS | {Outcome.GRAPH_BREAK: "breaks", Outcome.COMPILE_ERROR: "error"}
"""Short enough for a table of all outcomes on 80 columns."""


class Indented:
    """A renderable three columns to the right. Unlike rich's Padding it adds nothing after a line,
    which in a pipe would be thousands of blanks."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.update(width=max(options.max_width - 3, 1))
        for line in console.render_lines(self._renderable, inner, pad=False):
            yield Segment("   ")
            yield from line
            yield Segment.line()


def console(file: IO[str] | None = None) -> Console:
    """Where verbs print: in colour on a terminal only (NO_COLOR is honoured), as wide as needed
    when piped."""
    made = Console(file=file, highlight=False)
    if not made.is_terminal:
        made.width = UNLIMITED_WIDTH
    return made


def summary_table(view: RunView) -> RenderableType:
    """The end of a sweep: verdicts by family, top reasons, changes, notes, headline figures."""
    parts = [_families(view), *_reasons(view), *_errors(view), *_changed(view)]
    notes = _text("\n".join(f"note: {note}" for note in view.notes), "yellow")
    return _spaced([*parts, *([notes] if view.notes else []), _headline(view)])


def changes_table(view: RunView) -> RenderableType:
    """Every change against the baseline, regressions first, with what differs between the runs."""
    if view.baseline is None:
        return _text("no baseline to compare with")
    return _spaced([_compared(view), *_change_tables(view, {})])


def runs_table(runs: Sequence[Run]) -> RenderableType:
    """Stored runs, in the order given."""
    if not runs:
        return _text("no runs stored yet")
    table = _table("Run", "Source", "State", "Requests", "Time", "torch", "trans-\nformers", gap=0)
    for column in (table.columns[3], table.columns[4]):
        column.justify = "right"
    for column in table.columns[:5]:
        column.no_wrap = True
    for run in runs:
        table.add_row(
            _text(run.id, "bold"),
            _text(run.source + (f" {run.shard}" if run.shard else "")),
            _text(run.state, "" if run.state == "finished" else "yellow"),
            _text(f"{run.planned:,}"),
            _text(wording.seconds(run.wall_seconds)),
            _text(", ".join(dict.fromkeys(e.torch for e in run.environments))),
            _text(", ".join(dict.fromkeys(str(e.transformers) for e in run.environments))),
        )
    return table


def model_panel(result: Result, excerpt: Excerpt | None = None) -> RenderableType:
    """One result in full; `excerpt` gives the source lines around a break."""
    parts: list[RenderableType] = [_title(result), _figures(result)]
    if result.detail:
        parts.append(_text(result.detail))
    if result.expectation:
        parts.append(_text(f"expected: {result.expectation}", "dim"))
    refused = result.fullgraph is not None and not result.fullgraph.accepted
    if refused and not result.breaks and result.fullgraph and result.fullgraph.reason:
        parts += [_text("fullgraph=True refuses it:", "bold"), _block(result.fullgraph.reason)]
    for number, graph_break in enumerate(result.breaks, start=1):
        parts += [Text(), _break(number, graph_break, excerpt)]
    parts += _error(result, excerpt)
    parts += _how(result)
    return Group(*parts)


# --- the summary -------------------------------------------------------------------------------


def _families(view: RunView) -> RenderableType:
    counts: dict[str, Counter[Outcome]] = {}
    for result in view.results:
        counts.setdefault(result.request.model.family, Counter())[outcome(result)] += 1
    total = sum(counts.values(), Counter[Outcome]())
    shown = [group.name for group in summary.by_family(view)[:FAMILIES_SHOWN]]
    kinds = [kind for kind in OUTCOME_LABELS if total[kind]]
    table = _table("Family", *(HEADINGS[kind] for kind in kinds))
    for column in table.columns[1:]:
        column.justify = "right"

    def row(name: str, found: Counter[Outcome], style: str = "") -> None:
        cells = [_text(f"{found[k]:,}" if found[k] else "·", STYLES[k]) for k in kinds]
        table.add_row(_text(name, style), *cells)

    for name in shown:
        row(name, counts[name])
    rest = sum((found for name, found in counts.items() if name not in shown), Counter[Outcome]())
    if rest:
        others = len(counts) - len(shown)
        row(f"{others} other {'family' if others == 1 else 'families'}", rest, "dim")
    row(f"all {len(counts):,}", total, "bold")
    return table


def _reasons(view: RunView) -> list[RenderableType]:
    reasons = summary.top_reasons(view)
    if not reasons:
        return []
    parts: list[RenderableType] = [_reason_table("Reasons by models", reasons, REASONS_SHOWN)]
    if any(reason.downloads for reason in reasons):
        ranked = summary.top_reasons(view, by="downloads")
        heading = "Reasons by downloads affected"
        parts.append(_reason_table(heading, ranked, REASONS_BY_DOWNLOADS_SHOWN))
    return parts


def _reason_table(heading: str, reasons: Sequence[summary.Reason], limit: int) -> Table:
    table = _table(heading, "Models", "Downloads", "Breaks")
    for column in table.columns[1:]:
        column.justify = "right"
    for reason in reasons[:limit]:
        table.add_row(
            _text(reason.label),
            _text(f"{reason.models:,}"),
            _text(wording.quantity(reason.downloads)),
            _text(f"{reason.occurrences:,}"),
        )
    if len(reasons) > limit:
        table.add_row(_text(f"{len(reasons) - limit} more in the report", "dim"))
    return table


def _errors(view: RunView) -> list[RenderableType]:
    errors = summary.errors(view)
    if not errors:
        return []
    table = _table("Errors and no answers", "Phase", "Requests")
    table.columns[2].justify = "right"
    for phase, code, requests in errors[:REASONS_SHOWN]:
        table.add_row(_text(code), _text(phase), _text(f"{requests:,}"))
    return [table]


def _changed(view: RunView) -> list[RenderableType]:
    if view.baseline is None:
        return []
    limits = dict.fromkeys(ChangeKind, 0)
    limits |= {ChangeKind.REGRESSION: REGRESSIONS_SHOWN, ChangeKind.FIXED: FIXED_SHOWN}
    return [_compared(view), *_change_tables(view, limits)]


def _compared(view: RunView) -> Text:
    assert view.baseline is not None
    counts = Counter(change.kind for change in view.changes)
    said = [
        _plural(counts[ChangeKind.REGRESSION], "regression"),
        f"{counts[ChangeKind.FIXED]} fixed",
    ]
    said += [
        f"{counts[kind]} {kind.value.replace('_', ' ')}"
        for kind in ChangeKind
        if counts[kind] and kind not in CHANGE_STYLES
    ]
    line = _text(f"against {view.baseline.id}: {', '.join(said)}", "bold")
    if view.differences:
        line.append_text(_text(f"\ndiffers in {'; '.join(view.differences)}", "dim"))
    return line


def _change_tables(view: RunView, limits: dict[ChangeKind, int]) -> Iterable[RenderableType]:
    for kind, label in wording.CHANGE_LABELS.items():
        found = [change for change in view.changes if change.kind is kind]
        limit = limits.get(kind, len(found))
        if not found or not limit:
            continue
        table = _table(label, "Target", "Why")
        for change in found[:limit]:
            # What differs between the runs stands above the tables, once.
            causes = [cause for cause in change.causes if cause not in view.differences]
            table.add_row(
                _text(change.model, CHANGE_STYLES.get(kind, "")),
                _text(target_label(change.target)),
                _text("; ".join((change.reason, *causes))),
            )
        if len(found) > limit:
            table.add_row(_text(f"{len(found) - limit} more in the report", "dim"))
        yield table


def _headline(view: RunView) -> Text:
    figures = summary.summarise(view)
    counts = Counter(outcome(result) for result in view.results)
    whole = counts[Outcome.PASS]
    share = wording.percent(whole / figures.verdicts if figures.verdicts else None)
    without = figures.asked + figures.skipped - figures.verdicts
    line = _text(f"{whole:,} of {figures.verdicts:,} verdicts compile whole ({share})", "bold")
    said = [
        f"\ncoverage {wording.percent(figures.coverage)}: "
        f"{figures.verdicts:,} verdicts of {figures.asked:,} asked",
        f"no verdict or skipped: {without:,}",
    ]
    cost = [f"\nreused {wording.percent(figures.reused_share)}"]
    if figures.overhead is not None:
        cost.append(f"overhead {figures.overhead:.2f}")
    if view.run.wall_seconds is not None:
        jobs = _plural(view.run.jobs, "job")
        cost.append(f"{wording.seconds(view.run.wall_seconds)} with {jobs}")
    line.append_text(_text("; ".join(said) + "; ".join(cost)))
    if figures.missing:
        planned = f"{figures.missing:,} of {figures.planned:,} planned requests have no result"
        line.append_text(_text(f"\n{planned}: not run is not passed", "bold yellow"))
    return line


# --- one model ---------------------------------------------------------------------------------


def _title(result: Result) -> Text:
    model = result.request.model
    line = _text(model.name, "bold")
    line.append_text(_text(f"  {target_label(result.request.target)}  "))
    line.append_text(_text(wording.status_words(result), f"bold {STYLES[outcome(result)]}"))
    line.append_text(_text(f"  ({model.family}, {model.task})", "dim"))
    return line


def _figures(result: Result) -> Text:
    said = [f"{result.tier.value} tensors", f"{result.depth.value} depth"]
    if result.graphs is not None:
        said.append(_plural(result.graphs, "graph"))
    if result.graph_breaks is not None:
        distinct = f" ({result.distinct_breaks} distinct)" if result.distinct_breaks else ""
        said.append(_plural(result.graph_breaks, "graph break") + distinct)
    for number, noun in ((result.ops, "op"), (result.guards, "guard")):
        if number is not None:
            said.append(_plural(number, noun))
    if result.fullgraph is not None:
        answer = "accepted" if result.fullgraph.accepted else "refused"
        said.append(f"fullgraph {answer}{'' if result.fullgraph.derived else ' (probed)'}")
    if result.parameters is not None:
        said.append(f"{wording.quantity(result.parameters)} parameters")
    if result.peak_memory_bytes is not None:
        said.append(wording.memory(result.peak_memory_bytes))
    if result.durations:
        said.append(wording.seconds(summary.spent(result)))
    if result.reused_from:
        said.append(f"answered by {result.reused_from}")
    return _text(" · ".join(said), "dim")


def _break(number: int, graph_break: GraphBreak, excerpt: Excerpt | None) -> RenderableType:
    heading = _text(f"{number}. {reason_label(graph_break)}", "bold yellow")
    times = graph_break.occurrences
    heading.append_text(_text("  once" if times == 1 else f"  {times} times", "dim"))
    inside: list[RenderableType] = [
        _text(f"{graph_break.file}:{graph_break.line} in {graph_break.function}")
    ]
    inside += _lines(graph_break, excerpt)
    inside.append(_text(graph_break.reason.strip()))
    # torch's own text often has its hints and the link in it already.
    said = graph_break.reason
    hints = [hint.strip() for hint in graph_break.hints if hint.strip() not in said]
    inside += [_text(f"hint: {hint}", "green") for hint in hints]
    page = wording.registry_page(graph_break.code)
    if page is not None and page not in said:
        inside.append(_text(page, "cyan"))
    return Group(heading, Indented(Group(*inside)))


def _lines(graph_break: GraphBreak, excerpt: Excerpt | None) -> list[RenderableType]:
    here = (graph_break.file, graph_break.line)
    stored = source_line(graph_break)
    lines = excerpt(*here) if excerpt is not None else ()
    said = {line.number: line.text.strip() for line in lines}
    # An installed version other than the one that was run has something else on that line.
    if stored and said.get(graph_break.line, stored.strip()) != stored.strip():
        lines = ()
    if not lines and stored:
        lines = (SourceLine(graph_break.line, stored),)
    return _source(lines, graph_break.line)


def _source(lines: Sequence[SourceLine], marked: int) -> list[RenderableType]:
    width = len(str(lines[-1].number)) if lines else 0
    shown: list[RenderableType] = []
    for number, code in lines:
        mark = ">" if number == marked else " "
        line = _text(
            f"{mark} {number:>{width}} | {code}".rstrip(), "bold" if mark == ">" else "dim"
        )
        if number != marked:
            line.no_wrap, line.overflow = True, "ellipsis"
        shown.append(line)
    return shown


def _error(result: Result, excerpt: Excerpt | None) -> list[RenderableType]:
    error = result.error
    if error is None:
        return []
    parts: list[RenderableType] = [Text(), _text(f"{error.type} ({error.code})", "bold red")]
    if error.message.strip() != result.detail.strip():
        parts.append(_block(error.message))
    if error.file and error.line:
        inside = f" in {error.function}" if error.function else ""
        parts.append(_text(f"{error.file}:{error.line}{inside}"))
        if excerpt is not None:
            parts += _source(excerpt(error.file, error.line), error.line)
    trace = (error.tail or error.head).rstrip().splitlines()[-ERROR_LINES_SHOWN:]
    if trace:
        parts.append(_block("\n".join(trace), "dim"))
    return parts


def _how(result: Result) -> list[RenderableType]:
    parts: list[RenderableType] = [Text()]
    for tensor in result.inputs:
        shape = None if tensor.shape is None else f"{list(tensor.shape)} {tensor.dtype}"
        parts.append(_text(f"input {tensor.name}: {shape or tensor.value}", "dim"))
    for attempt in result.attempts:
        ended = f"{attempt.status.value} in {attempt.phase.value}"
        why = attempt.reason.replace("_", " ")
        parts.append(_text(f"before it: {attempt.tier.value} tensors, {ended}: {why}", "dim"))
    first, others = wording.main_artifacts(result.artifacts)
    parts += [_text(f"artifact {path}", "dim") for path in first]
    if others:
        parts.append(_text(f"and {_plural(len(others), 'more artifact')}", "dim"))
    parts.append(_text(wording.commands(result.request)[0], "cyan"))
    return parts


def _table(*headings: str, gap: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, gap, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _spaced(parts: Iterable[RenderableType]) -> RenderableType:
    """The parts with an empty line after each but the last."""
    separated = [piece for part in parts for piece in (part, Text())]
    return Group(*separated[:-1])


def _block(text: str, style: str = "") -> RenderableType:
    return Indented(_text(text.strip("\n"), style))


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(text: str, style: str = "") -> Text:
    return Text(wording.printable(text.expandtabs(4)), style=style, overflow="fold")
