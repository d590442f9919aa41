"""`compilewatch shapes`: how often a model compiles for the sizes that it is served with."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Group

from compilewatch.api.choose import one_request
from compilewatch.cli import options
from compilewatch.cli.progress import spinner
from compilewatch.errors import UsageError
from compilewatch.extras.shapes.buckets import buckets_of, frequencies
from compilewatch.extras.shapes.records import Buckets, OneGraph, ServedSize, ShapeReport
from compilewatch.extras.shapes.tracing import served_by_trace, served_by_values, shapes_of
from compilewatch.records import ShapeSeries, Status
from compilewatch.report.terminal import console, plain, plain_table, table
from compilewatch.report.wording import plural, recompilation_lines


@click.command("shapes")
@options.one_request_options
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=SIZES",
    help="A dimension and its sizes: batch=1..64, sequence=1,8,512, x.0=1..64.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False),
    help='The sizes as served: a JSON line for each call, such as {"batch": 8}.',
)
@click.option(
    "--one-graph",
    is_flag=True,
    help="Also run one graph without guards for all sizes, as servers do, against eager mode.",
)
@click.option(
    "--buckets",
    is_flag=True,
    help="Also show to which few sizes to pad, for compilers that take one shape a graph.",
)
@click.option(
    "--generate",
    is_flag=True,
    help="Also show what generate() compiles: prompts of 1 to 512 tokens, and 64 new tokens.",
)
@options.as_json
def command(
    *,
    vary: tuple[str, ...],
    trace: str | None,
    one_graph: bool,
    buckets: bool,
    generate: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Show how often MODEL compiles for the sizes that it is served with, and why.

    It is called at reduced depth, as users compile by default and with dynamic=True.

    Exit statuses: 0 no call runs in eager mode; 1 one does, at the limit of recompilations, or one
    graph for all sizes is wrong or cannot be captured; 2 wrong input.
    """
    if bool(vary) == bool(trace) and not (generate and not vary):
        raise UsageError("say which sizes are served: --vary batch=1..64, or --trace FILE")
    vary = vary or ("batch=2",)  # with --generate alone
    served = served_by_trace(Path(trace).read_text(), trace) if trace else served_by_values(vary)
    names = ("model", "target", "mode", "dynamic", "inputs_file")
    chosen = {name: flags.pop(name) for name in names}
    request, settings = one_request(**chosen, flags=flags | {"jobs": 1})
    with spinner(f"calling {request.model.name} with sizes that differ"):
        report = shapes_of(request, settings, served, one_graph=one_graph, generate=generate)
    if buckets:
        best = {name: buckets_of(counts) for name, counts in frequencies(served).items()}
        report = msgspec.structs.replace(report, buckets=best)
    if as_json:
        options.print_json(report)
    else:
        console().print(_text(request.model.name, report), crop=False)
    graph = report.one_graph
    return int(report.as_called.limit is not None or (graph is not None and not graph.holds))


def _text(model: str, report: ShapeReport) -> Group:
    parts = [plain(model, "bold")]
    for limit in report.limits:
        line = f"{limit.place.file}:{limit.place.line}"
        parts.append(
            plain(f"{limit.name} ends at {limit.size:,}: the model itself fails beyond, {line}")
        )
    titled = {"as called": report.as_called, "dynamic=True": report.dynamic}
    titled |= {f"generate(), {name}": series for name, series in (report.generation or {}).items()}
    for title, series in titled.items():
        parts += [
            plain(""),
            plain(f"{title}: {plural(series.compilations, 'compilation')}", "bold"),
        ]
        causes = recompilation_lines(series.recompilations)
        parts += [_calls(series), *(plain(f"{calls}: {cause}") for calls, cause in causes)]
    if (graph := report.one_graph) is not None:
        verdict = "right for all sizes that ran" if graph.holds else "wrong"
        verdict = "not possible" if graph.error else verdict
        title = f"One graph for all sizes, without guards: {verdict}"
        parts += [plain(""), plain(title, "bold"), *map(plain, _one_graph(graph))]
    for name, best in (report.buckets or {}).items():
        title = f"Buckets of {name}: {_padding(name, report.masks)}"
        parts += [plain(""), plain(title, "bold"), _buckets(best)]
    return Group(*parts)


def _calls(series: ShapeSeries) -> Any:
    names = list(dict.fromkeys(name for call in series.calls for name in call.sizes))
    table = plain_table("Call", *names, "Compiles", "Served by")
    for number, call in enumerate(series.calls, start=1):
        if "step" in call.sizes and not (call.compiled or call.error):
            continue
        sizes = (str(call.sizes.get(name, "")) for name in names)
        graphs = ", ".join(str(graph + 1) for graph in call.served_by) or "eager mode"
        served = call.error or graphs
        table.add_row(str(number), *sizes, str(call.compiled), served)
    return table


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
