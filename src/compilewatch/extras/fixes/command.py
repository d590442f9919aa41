"""`compilewatch fix`: search for changes that remove a model's graph breaks, and prove them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from compilewatch.api.requests import one_request
from compilewatch.cli import options
from compilewatch.errors import StoreError
from compilewatch.extras.fixes.fixing import Limits, find_fix
from compilewatch.extras.fixes.records import FixStatus
from compilewatch.extras.fixes.search import MAX_EVALUATIONS, MAX_SECONDS
from compilewatch.extras.fixes.text import fix_panel
from compilewatch.report.terminal.pieces import console

EXIT_STATUSES = {
    FixStatus.PROVEN: 0,
    FixStatus.NO_BREAK: 0,
    FixStatus.IMPROVES: 1,
    FixStatus.NOTHING: 3,
    FixStatus.NO_VERDICT: 3,
}


@click.command("fix")
@options.one_request_options
@click.option(
    "--max-evaluations",
    type=click.IntRange(min=1),
    default=MAX_EVALUATIONS,
    show_default=True,
    help="How often Dynamo is asked at most.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=1),
    default=MAX_SECONDS,
    show_default=True,
    help="After this time nothing new is tried.",
)
@click.option("--no-rewrites", is_flag=True, help="Try nothing that edits the source of a library.")
@click.option("--save", type=click.Path(dir_okay=False), help="Write the script of the proof.")
@click.option("--patch", type=click.Path(dir_okay=False), help="Write rewrites as a unified diff.")
@options.verbose
@options.as_json
def command(
    *,
    model: str,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    max_evaluations: int,
    max_seconds: float,
    no_rewrites: bool,
    save: str | None,
    patch: str | None,
    verbose: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Search for changes that remove the graph breaks of MODEL, and print what is proven.

    Settings of Dynamo, another use of the model, its documented arguments, replacements of single
    functions and rewrites of source lines are tried, the least intrusive first. What Dynamo accepts
    is proven by a script of plain PyTorch in a process of its own: single graph, equal results in
    eager mode, as a graph and with Inductor, for two shapes and two seeds, and for unusual values.

    Exit statuses: 0 a single graph, proven (or no graph break); 1 fewer graph breaks, proven;
    2 wrong input; 3 nothing is proven.
    """
    request, settings = one_request(
        model,
        target=target,
        mode=mode,
        dynamic=dynamic,
        inputs_file=inputs_file,
        flags=flags | {"jobs": 1},
    )
    err = console(stderr=True)

    def report(what: str, number: int) -> None:
        err.print(f"{number + 1:>2}  {what}", markup=False, highlight=False)

    found = find_fix(
        request,
        settings,
        limits=Limits(evaluations=max_evaluations, seconds=max_seconds),
        rewrites=not no_rewrites,
        report=report,
    )
    if save is not None:
        _write(save, found.script)
    if patch is not None:
        _write(patch, found.patch)
    if as_json:
        options.print_json(found)
    else:
        console().print(fix_panel(found, verbose=verbose))
    return EXIT_STATUSES[found.status]


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
