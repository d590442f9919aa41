"""`compilewatch shapes`: how often a model compiles for the sizes that it is served with."""

from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch.api.choose import one_request
from compilewatch.cli import options
from compilewatch.cli.progress import spinner
from compilewatch.errors import UsageError
from compilewatch.extras.shapes.text import picture, shape_text
from compilewatch.extras.shapes.tracing import (
    buckets_of,
    frequencies,
    served_by_trace,
    served_by_values,
    shapes_of,
)
from compilewatch.report.terminal import console


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
@click.option(
    "--save",
    type=click.Path(dir_okay=False),
    help="Write the script that confirms the plan, or with .svg the picture.",
    multiple=True,
)
@options.as_json
def command(
    *,
    vary: tuple[str, ...],
    trace: str | None,
    one_graph: bool,
    buckets: bool,
    generate: bool,
    save: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> int:
    """Show how often MODEL compiles for the sizes that it is served with, and why.

    It is called at reduced depth, as users compile by default and with dynamic=True. Of a range, at
    most 20 sizes are called: Dynamo's own ranges and guards say which tell most. The plan is code
    with which the range needs the fewest compilations; a script of plain PyTorch confirms it in a
    separate process, on the CPU: what a random sample compiles, and outputs and gradients as in
    eager mode at each bound.

    Exit statuses: 0 no call runs in eager mode; 1 one does as called, at the limit of
    recompilations, or one graph for all sizes is wrong or cannot be captured; 2 wrong input; 3 no
    plan was confirmed, though one would need fewer.
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
        console().print(shape_text(request.model.name, report), crop=False)
    for path in map(Path, save):
        if path.suffix == ".svg":
            path.write_bytes(picture(request.model.name, report))
        elif report.plan is not None:
            path.write_text(report.plan.script)
        else:
            click.echo(f"compilewatch: {path} is not written: there is no plan", err=True)
    graph = report.one_graph
    if report.as_called.limit is not None or (graph is not None and not graph.holds):
        return 1
    return 3 if report.unconfirmed and report.plan is None else 0
