"""`compilewatch inputs`: show the example inputs of a model, and save them for editing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from compilewatch.api.requests import one_request
from compilewatch.api.worker_client import call_worker
from compilewatch.cli import options
from compilewatch.cli.conditions import INCOMPLETE
from compilewatch.cli.rendering.progress import spinner
from compilewatch.contract.messages import MadeInputs
from compilewatch.contract.targets import naming_options
from compilewatch.environments import Environments
from compilewatch.errors import StoreError
from compilewatch.records import Tier
from compilewatch.report.terminal import console


@click.command("inputs")
@options.one_request_options
@click.option(
    "--save",
    type=click.Path(dir_okay=False),
    help="Write them to a .toml file, which can be edited and passed with --inputs.",
)
@options.as_json
def command(
    *,
    model: str,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    save: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Show the example inputs of MODEL: names, shapes, dtypes, and how they were made."""
    if save is not None:
        # Only real tensors have values that can be written to a file.
        flags["tier"] = Tier.REAL.value
    request, settings = one_request(
        model,
        target=target,
        mode=mode,
        dynamic=dynamic,
        inputs_file=inputs_file,
        flags=flags,
    )
    environments = Environments(settings.cache_folder)
    with spinner(f"starting worker and making inputs of {request.model.name}"):
        example = call_worker(environments, "inputs", request, MadeInputs)
    if save is not None:
        try:
            Path(save).write_text(example.toml)
        except OSError as error:
            raise StoreError(f"{save} cannot be written: {error.strerror}") from None
    if as_json:
        options.print_json(example)
        return 0
    table = Table("Argument", "Shape", "Dtype", "Value", box=None, pad_edge=False)
    for tensor in example.inputs:
        shape = str(list(tensor.shape)) if tensor.shape is not None else ""
        table.add_row(tensor.name, shape, tensor.dtype or "", tensor.value or "")
    for name in example.unknown:
        table.add_row(name, "?", "?", "no rule derives its value")
    out = console()
    out.print(f"{request.model.name}: strategy {example.strategy}, {example.tier.value} tensors")
    out.print(table)
    if example.problem:
        out.print(f"These inputs were guessed, and a call with them fails: {example.problem}")
    where = naming_options(request)
    use = f"compilewatch explain {model}{where} --inputs {save or 'FILE'}"
    incomplete = bool(example.unknown or example.problem)
    if save is not None:
        fill_in = " Fill in the unknown arguments." if example.unknown else ""
        fill_in += " Correct the guessed ones." if example.problem else ""
        click.echo(f"\nSaved.{fill_in} Then run: {use}")
    elif incomplete:
        what = "To fill them in" if example.unknown else "To correct them"
        click.echo(f"\n{what}, run: compilewatch inputs {model}{where} --save FILE, then {use}")
    return INCOMPLETE if incomplete and save is None else 0
