"""`compilewatch shapes`: how often a model compiles for the sizes that it is served with."""

from pathlib import Path
from typing import Any

import click
from rich.console import Group

from compilewatch.api.choose import one_request
from compilewatch.cli import options
from compilewatch.cli.progress import spinner
from compilewatch.errors import UsageError
from compilewatch.extras.shapes.records import ShapeReport
from compilewatch.extras.shapes.tracing import served_by_trace, served_by_values, shapes_of
from compilewatch.records import ShapeSeries
from compilewatch.report.terminal import console, plain, plain_table
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
@options.as_json
def command(
    *,
    vary: tuple[str, ...],
    trace: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Show how often MODEL compiles for the sizes that it is served with, and why.

    It is called at reduced depth, as users compile by default and with dynamic=True.

    Exit statuses: 0 no call runs in eager mode; 1 one does, at the limit of recompilations; 2 wrong
    input.
    """
    if bool(vary) == bool(trace):
        raise UsageError("say which sizes are served: --vary batch=1..64, or --trace FILE")
    served = served_by_trace(Path(trace).read_text(), trace) if trace else served_by_values(vary)
    names = ("model", "target", "mode", "dynamic", "inputs_file")
    chosen = {name: flags.pop(name) for name in names}
    request, settings = one_request(**chosen, flags=flags | {"jobs": 1})
    with spinner(f"calling {request.model.name} with sizes that differ"):
        report = shapes_of(request, settings, served)
    if as_json:
        options.print_json(report)
    else:
        console().print(_text(request.model.name, report), crop=False)
    return int(report.as_called.limit is not None)


def _text(model: str, report: ShapeReport) -> Group:
    parts = [plain(model, "bold")]
    for limit in report.limits:
        line = f"{limit.place.file}:{limit.place.line}"
        parts.append(
            plain(f"{limit.name} ends at {limit.size:,}: the model itself fails beyond, {line}")
        )
    for title, series in (("as called", report.as_called), ("dynamic=True", report.dynamic)):
        parts += [
            plain(""),
            plain(f"{title}: {plural(series.compilations, 'compilation')}", "bold"),
        ]
        causes = recompilation_lines(series.recompilations)
        parts += [_calls(series), *(plain(f"{calls}: {cause}") for calls, cause in causes)]
    return Group(*parts)


def _calls(series: ShapeSeries) -> Any:
    names = list(dict.fromkeys(name for call in series.calls for name in call.sizes))
    table = plain_table("Call", *names, "Compiles", "Served by")
    for number, call in enumerate(series.calls, start=1):
        sizes = (str(call.sizes.get(name, "")) for name in names)
        graphs = ", ".join(str(graph + 1) for graph in call.served_by) or "eager mode"
        served = call.error or graphs
        table.add_row(str(number), *sizes, str(call.compiled), served)
    return table
