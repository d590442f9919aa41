"""`compilewatch explain`: check one model now and show its result in the terminal."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch.cli import conditions, options
from compilewatch.cli.rendering.excerpt import excerpt_of
from compilewatch.cli.rendering.panel import model_panel
from compilewatch.cli.rendering.pieces import console
from compilewatch.cli.rendering.progress import spinner
from compilewatch.cli.verbs.sweep import local_launcher


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
    NAME or FACTORY is a function without arguments that returns the module. Nothing is stored. The
    exit status is 3 if there is no verdict.
    """
    request, settings = options.one_request(
        model,
        target=target,
        mode=mode,
        dynamic=dynamic,
        inputs_file=inputs_file,
        flags=flags | {"jobs": 1},
    )
    # Without --keep, the trace need not be written and rendered.
    request = msgspec.structs.replace(request, keep_artifacts=keep is not None)
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, [request.target.environment], single=True) as launcher,
        spinner(f"checking {request.model.name}", launcher),
    ):
        (completed,) = launcher.run([request], Path(scratch))
        if keep is not None and completed.artifacts is not None:
            shutil.copytree(completed.artifacts, keep, dirs_exist_ok=True)
            for path in Path(keep).rglob("*"):
                if path.is_file():
                    path.chmod(0o644)  # torch makes its trace readable by the owner only
    result = completed.result
    if keep is None:
        # The artifacts were deleted with the scratch folder.
        result = msgspec.structs.replace(result, artifacts=())
    if as_json:
        options.print_json(result)
    else:
        console().print(model_panel(result, excerpt_of(request), verbose=verbose))
    return conditions.exit_status_of(result, fail_on)
