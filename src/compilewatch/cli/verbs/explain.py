"""`compilewatch explain`: check one model now and show its result in the terminal."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from compilewatch.api.launching import evaluate_one
from compilewatch.api.requests import one_request
from compilewatch.cli import conditions, options
from compilewatch.cli.rendering.progress import spinner
from compilewatch.records import Result
from compilewatch.report.terminal import console, excerpt_of, model_panel


@click.command("explain")
@options.one_request_options
@options.nested_graph_breaks
@click.option(
    "--artifacts",
    "keep",
    type=click.Path(file_okay=False),
    help="Keep the compile trace and its rendered pages in this folder.",
)
@conditions.option
@options.verbose
@options.as_json
def command(
    *,
    model: str,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    keep: str | None,
    fail_on: conditions.Conditions,
    verbose: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Check one MODEL now and show its graph breaks with their source lines.

    MODEL is a class of Transformers, a family, a model of the pulled list or the manifest, or your
    own model: a folder with a config.json, ./FILE.py, ./FILE.py:NAME, or MODULE:FACTORY, where
    NAME or FACTORY is a function without arguments that returns the module. Nothing is stored. If
    `fix --all-of` has verified a fix for the same graph breaks in a stored run, it is shown too.
    The exit status is 3 if there is no verdict.
    """
    request, settings = one_request(
        model,
        target=target,
        mode=mode,
        dynamic=dynamic,
        inputs_file=inputs_file,
        flags=flags | {"jobs": 1},
    )
    result = evaluate_one(
        request,
        settings,
        keep=Path(keep) if keep is not None else None,
        around=partial(spinner, f"checking {request.model.name}"),
    )
    if as_json:
        options.print_json(result)
    else:
        console().print(model_panel(result, excerpt_of(request), verbose=verbose))
        if result.breaks:
            _print_stored_fix(result, Path(settings.output_dir))
    return conditions.exit_status_of(result, fail_on)


def _print_stored_fix(result: Result, folder: Path) -> None:
    """Print a verified fix for these graph breaks, if a run in this folder has one."""
    from compilewatch.api.stored_fixes import stored_fix_for
    from compilewatch.cli.rendering.stored_fix import stored_fix_text
    from compilewatch.store import Store  # the store is only needed here

    fix = stored_fix_for(Store(folder), result)
    if fix is not None:
        console().print(stored_fix_text(fix, result), crop=False)
