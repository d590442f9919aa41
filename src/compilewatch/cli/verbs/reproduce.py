"""`compilewatch reproduce`: show the verdict on a model without compilewatch."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch import plugins
from compilewatch.api.requests import one_request
from compilewatch.api.worker_client import call_worker
from compilewatch.cli import options
from compilewatch.cli.conditions import FOUND
from compilewatch.cli.rendering.progress import spinner
from compilewatch.contract.messages import Script
from compilewatch.environments import Environments
from compilewatch.errors import StoreError, UsageError
from compilewatch.records import Depth, Tier


@click.command("reproduce")
@options.one_request_options
@options.nested_graph_breaks
@click.option("--save", type=click.Path(dir_okay=False), help="Write the script to a file.")
@click.option("--run", "run_it", is_flag=True, help="Also run the script.")
@click.option(
    "--minimal", is_flag=True, help="Write one graph break as a small file of plain PyTorch."
)
@click.option("--issue", is_flag=True, help="Write the draft of an issue with it; nothing is sent.")
@click.option(
    "--at", metavar="FILE:LINE", help="The graph break for --minimal: its place, or its code."
)
def command(
    *,
    model: str,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    save: str | None,
    run_it: bool,
    minimal: bool,
    issue: bool,
    at: str | None,
    **flags: Any,
) -> int:
    """Print a script of plain PyTorch that shows the verdict on MODEL.

    The script needs only torch and the library of the model. It builds the model from its
    configuration, at reduced size if that can be written, with real tensors, and prints each graph
    break with its line, and whether fullgraph=True accepts the model. Then it prints the result of
    compilewatch (expected) and its own result (got). The exit status of the script, and of --run,
    is 1 if the two differ.

    With --minimal, the file has one graph break only, cut out of the library's code: it needs
    nothing but torch, and was run in a fresh process, in which torch gave the same code.
    """
    if at is not None and not (minimal or issue):
        raise UsageError("--at chooses the graph break of --minimal or --issue: add one of them")
    if issue and run_it:
        raise UsageError("--issue writes a text, which cannot be run: leave out --run")
    request, settings = one_request(
        model,
        target=target,
        mode=mode,
        dynamic=dynamic,
        inputs_file=inputs_file,
        flags=flags,
    )
    request = msgspec.structs.replace(request, tier=Tier.REAL, depth=Depth.REDUCED)
    environments = Environments(settings.cache_folder)
    if minimal or issue:
        write = plugins.provided("minimal reproducer", "reproduce --minimal")
        with spinner(f"looking for a minimal reproducer of {request.model.name}"):
            script, note = write(
                environments, request, at=at, issue=issue, outputs=Path(settings.output_dir)
            )
        click.echo(note, err=True)
    else:
        with spinner(f"starting worker and capturing {request.model.name}"):
            script = call_worker(environments, "reproduce", request, Script).text
    if save is not None:
        _save(Path(save), script)
    elif not run_it:
        click.echo(script, nl=False)
    if not run_it:
        return 0
    python = environments.interpreter(request.target.environment).path
    ended = subprocess.run([python, "-B", "-"], input=script.encode(), check=False)
    return ended.returncode if ended.returncode in (0, FOUND) else 2


def _save(path: Path, script: str) -> None:
    try:
        path.write_text(script)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"Saved: {path.absolute()}", err=True)
