"""What `shapes` prints: counts, causes, ranges, the plan, and which graph serves which sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compilewatch.extras.shapes.records import (
    Buckets,
    OneGraph,
    ServedSize,
    ServedSizes,
    ShapePlan,
    ShapeReport,
)
from compilewatch.records import ShapeSeries, Status
from compilewatch.report import charts
from compilewatch.report.terminal import Indented, plain, plain_table, table
from compilewatch.report.wording import plural, recompilation_lines

TONES = ("#2f9e5b", "#4a86c5", "#d08a17", "#a36ad0", "#d0691e", "#3c8d5a", "#b0578d", "#8a7a2b")
"""The colours of graphs, in the order in which they are compiled."""

NOWHERE = "#b4bcc6"
"""The colour of sizes of which nothing says which graph serves them."""


def shape_text(model: str, report: ShapeReport) -> Group:
    """Return what a terminal shows: first the counts, at the end the plan."""
    counts = f"{plural(report.as_called.compilations, 'compilation')} as called, "
    counts += f"{report.dynamic.compilations} with dynamic=True"
    if report.plan is not None:
        counts += f", {report.plan.series.compilations} with the plan"
    parts: list[RenderableType] = [plain(f"{model}: {counts}", "bold")]
    parts += (
        plain(
            f"{limit.name} {'ends' if limit.upper else 'begins'} at {limit.size:,}: "
            f"{'beyond' if limit.upper else 'below'} it "
            + (
                f"the model itself fails, {limit.place.file}:{limit.place.line}: {limit.error}"
                if limit.by_model
                else f"the model cannot be called on tensors without values: {limit.error}"
            )
        )
        for limit in report.limits
    )
    titled = {"as called": report.as_called, "dynamic=True": report.dynamic}
    titled |= {f"generate(), {name}": series for name, series in (report.generation or {}).items()}
    for title, series in titled.items():
        heading = f"{title}: {plural(series.compilations, 'compilation')}"
        parts += [plain(""), plain(heading, "bold"), _calls(series)]
        causes = recompilation_lines(series.recompilations)
        parts += [plain(f"{calls}: {cause}") for calls, cause in causes]
        if series.limit is not None:
            at = f"{series.limit.file}:{series.limit.line}"
            parts.append(plain(f"{at} runs in eager mode, at the limit of recompilations", "red"))
        parts += _dynamic(series)
    for title, served in pictures(report):
        parts += [plain(""), plain(f"Which graph serves which sizes, {title}"), _blocks(served)]
    parts += [plain(""), *_plan(report, report.plan)]
    if (graph := report.one_graph) is not None:
        verdict = "right for all sizes that ran" if graph.holds else "wrong"
        verdict = "not possible" if graph.error else verdict
        heading = f"One graph for all sizes, without guards: {verdict}"
        parts += [plain(""), plain(heading, "bold"), *map(plain, _one_graph(graph))]
    for name, best in (report.buckets or {}).items():
        heading = f"Buckets of {name}: {_padding(name, report.masks)}"
        parts += [plain(""), plain(heading, "bold"), _buckets(best)]
    return Group(*parts)


def pictures(report: ShapeReport) -> Iterator[tuple[str, ServedSizes]]:
    """Yield the pictures of a report with their titles."""
    yield from report.served.items()
    if report.plan is not None:
        yield "with the plan", report.plan.served


def _calls(series: ShapeSeries) -> Table:
    names = list(dict.fromkeys(name for call in series.calls for name in call.sizes))
    calls = plain_table("Call", *names, "Compiles", "Served by")
    for number, call in enumerate(series.calls, start=1):
        if "step" in call.sizes and not (call.compiled or call.error):
            continue
        sizes = (str(call.sizes.get(name, "")) for name in names)
        graphs = ", ".join(str(graph + 1) for graph in call.served_by) or "eager mode"
        error = f"the model itself fails: {call.error}" if call.rejected else call.error
        calls.add_row(str(number), *sizes, str(call.compiled), error or graphs)
    return calls


def _dynamic(series: ShapeSeries) -> Iterator[RenderableType]:
    """Yield the dimensions of each graph that may differ, with their bounds."""
    for number, graph in enumerate(series.graphs, start=1):
        ranges = ", ".join(
            f"{dim.name} {dim.lower:,}{f' to {dim.upper:,}' if dim.upper else ' and more'}"
            for dim in graph.dynamic
        )
        yield plain(f"graph {number}: {ranges or 'for its own sizes alone'}", "dim")


def _plan(report: ShapeReport, plan: ShapePlan | None) -> Iterator[RenderableType]:
    for title, reason in report.unconfirmed.items():
        yield plain(f"Not confirmed: {title}: {reason}")
    if plan is None or plan.proof is None:
        fewest = "as called"
        if report.dynamic.compilations < report.as_called.compilations:
            fewest = "with dynamic=True"
        what = "No plan that needs" if report.unconfirmed else "No plan needs"
        end = "is confirmed" if report.unconfirmed else ""
        yield plain(f"{what} fewer compilations than the model {fewest} {end}".rstrip(), "bold")
        return
    yield plain(f"Plan: {plan.title}", "bold")
    others = (f"{n}: {title}" for title, n in plan.tried.items() if title != plan.title)
    yield from (plain(f"instead of {other}", "dim") for other in others)
    yield Indented(plain(plan.code))
    proof = plan.proof
    yield plain(
        f"Confirmed in plain PyTorch: {plural(plan.series.compilations, 'compilation')} for "
        f"{proof.sample} random sizes; outputs and gradients as in eager mode for "
        f"{plural(len(proof.compared), 'size')}"
    )
    if proof.late:
        late = "; ".join(", ".join(f"{n} {s}" for n, s in sizes.items()) for sizes in proof.late)
        yield plain(f"Not compared, as a call takes too long or too much memory here: {late}")
    yield plain(f"Holds if: {'; '.join(plan.holds_if)}")


def _rows(served: ServedSizes) -> tuple[list[str], list[str], Iterator[tuple[int, ...]]]:
    """Return the sizes of rows and columns, and the graphs row by row; one dimension is a row."""
    *down, across = served.values.items()
    rows = [f"{down[0][0]} {size}" for size in down[0][1]] if down else [""]
    width = len(across[1])
    graphs = (served.graphs[at : at + width] for at in range(0, len(served.graphs), width))
    return rows, [f"{across[0]} {size}" for size in across[1]], graphs


def _blocks(served: ServedSizes) -> Table:
    rows, columns, graphs = _rows(served)
    grid = Table(box=None, pad_edge=False, padding=0)
    grid.add_column("")
    grid.add_column(f" {columns[0]} to {columns[-1].rpartition(' ')[2]}", style="dim")
    for row, cells in zip(rows, graphs, strict=True):
        text = Text()
        for graph in cells:
            tone = TONES[graph % len(TONES)] if graph >= 0 else NOWHERE
            text.append(f" {graph + 1 if graph >= 0 else '?'}", f"black on {tone}")
        grid.add_row(f"{row} ", text)
    return grid


def picture(model: str, report: ShapeReport) -> bytes:
    """Return the pictures of a report as SVG: grids of sizes, coloured by the graph of each."""
    cell, left, gap = 18, 90, 44
    grids = [(title, *_rows(served)) for title, served in pictures(report)]
    width = left + cell * max(len(columns) for _, _, columns, _ in grids) + 10
    height = sum(len(rows) * cell + gap for _, rows, _, _ in grids)
    words = "; ".join(title for title, *_ in grids)
    svg = charts.document(
        f"{model}: graphs by sizes", f"Which graph serves: {words}", width, height
    )
    top = 0
    for title, rows, columns, graphs in grids:
        span = f"{columns[0]} to {columns[-1].rpartition(' ')[2]}"
        charts.text_at(svg, 0, top + 14, title)
        charts.text_at(svg, left, top + 30, span, css="faint")
        for number, (row, cells) in enumerate(zip(rows, graphs, strict=True)):
            y = top + 36 + number * cell
            charts.text_at(svg, left - 8, y + 13, row, anchor="end")
            for at, graph in enumerate(cells):
                tone = TONES[graph % len(TONES)] if graph >= 0 else NOWHERE
                x = left + at * cell
                charts.rectangle(svg, x, y, cell - 1, cell - 1, "", tone)
                charts.text_at(svg, x + 5, y + 13, str(graph + 1) if graph >= 0 else "?")
        top += len(rows) * cell + gap
    return charts.encoded(svg)


_WRONG = (Status.MISMATCH, Status.ERROR)
_VERDICTS = {
    Status.MISMATCH: "differs",
    Status.ERROR: "fails",
    Status.PASS: "right",
    Status.UNSUPPORTED: "not judged",
    Status.SKIPPED: "not run",
}


def _one_graph(graph: OneGraph) -> Iterator[str]:
    """What is wrong comes first, each time with the line of the model."""
    if graph.error:
        yield graph.error
        return
    yield f"captured at {_words(graph.captured)}, compiled with {graph.backend}, on real tensors"
    groups: dict[Any, list[ServedSize]] = {}
    for call in graph.calls:
        why = (call.guard, call.needed_by) if call.status in _WRONG else call.detail
        groups.setdefault((call.status, why), []).append(call)
    order = list(_VERDICTS)
    for (status, _), calls in sorted(groups.items(), key=lambda group: order.index(group[0][0])):
        yield f"{_VERDICTS[status]}: {', '.join(_places(graph, calls))}"
        guard, line = calls[0].guard, calls[0].needed_by
        if calls[0].detail:
            yield f"  {calls[0].detail}"
        if status in _WRONG and line is not None:
            place = f"{line.file}:{line.line} in {line.function}: {line.text}"
            yield f"  the graph is for {guard}: {place}"
        elif status in _WRONG:
            assumed = f"the graph is for {guard}, which torch assumes without a guard"
            yield f"  {assumed if guard else 'no guard on a size says so'}"


def _places(graph: OneGraph, calls: list[ServedSize]) -> Iterator[str]:
    """The sizes of calls: `x.0 65 to 256`, of those that differ from the captured in one only."""
    for name in graph.captured:
        along = [c for c in graph.calls if c.sizes == graph.captured | {name: c.sizes[name]}]
        for is_one, run in itertools.groupby(along, key=lambda call: call in calls):
            if is_one:
                sizes = [str(call.sizes[name]) for call in run]
                yield f"{name} {' to '.join(dict.fromkeys((sizes[0], sizes[-1])))}"
    for call in calls:
        if sum(size != graph.captured[name] for name, size in call.sizes.items()) > 1:
            yield _words(call.sizes)


def _words(sizes: dict[str, int]) -> str:
    return " and ".join(f"{name} {size}" for name, size in sizes.items())


def _buckets(best: tuple[Buckets, ...]) -> Any:
    rows = [
        (str(number), ", ".join(map(str, row.sizes)), f"{row.padding:.1%}", f"{row.worst:.1%}")
        for number, row in enumerate(best, start=1)
    ]
    return table((">Buckets", "Sizes", ">Padding", ">Of the worst call"), rows)


def _padding(name: str, masks: tuple[str, ...]) -> str:
    if name == "batch":
        return "add samples and drop their results, if no sample depends on others"
    if masks:
        return f"pad only what {' and '.join(masks)} can leave out"
    return "the model takes no mask, so that padding changes its results"
