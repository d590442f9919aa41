"""Commands about one model that evaluate it now: `explain`, `inputs` and `reproduce`."""

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch import plugins
from compilewatch.api.check import with_numerics
from compilewatch.api.choose import call_worker, evaluate_one, one_request
from compilewatch.cli import conditions, options
from compilewatch.cli.conditions import FOUND, INCOMPLETE
from compilewatch.cli.progress import spinner
from compilewatch.config import Settings
from compilewatch.contract.messages import MadeInputs, Script
from compilewatch.contract.targets import naming_options
from compilewatch.environments import Environments
from compilewatch.errors import OsErrorsAs, StoreError, UsageError
from compilewatch.records import Depth, Request, Status, Tier
from compilewatch.report.terminal import console, model_panel, table


def _request(flags: dict[str, Any]) -> tuple[Request, Settings]:
    """The request of a command with `options.one_request_options`."""
    names = ("model", "target", "mode", "dynamic", "inputs_file")
    return one_request(**{name: flags.pop(name) for name in names}, flags=flags)


@click.command("explain")
@options.one_request_options
@options.nested_graph_breaks
@options.numerics
@click.option(
    "--artifacts",
    "keep",
    type=click.Path(file_okay=False),
    help="Keep the compile trace and its rendered pages in this folder.",
)
@conditions.option
@options.verbose
@options.as_json
def explain_command(
    *,
    keep: str | None,
    numerics: bool | None,
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
    request, settings = _request(flags | {"jobs": 1})
    around = partial(spinner, f"checking {request.model.name}")
    folder = Path(keep) if keep is not None else None
    result = evaluate_one(request, settings, keep=folder, around=around)
    if numerics and result.status in (Status.PASS, Status.GRAPH_BREAK):
        compared, _ = _request(flags | {"jobs": 1, "target": "numerics"})
        result = with_numerics(result, evaluate_one(compared, settings, around=around))
    if as_json:
        options.print_json(result)
    else:
        console().print(model_panel(result, verbose=verbose))
        if result.breaks:
            from compilewatch.api.publish import stored_fix_for
            from compilewatch.cli.tables import stored_fix_text
            from compilewatch.store import Store  # the store is only needed here

            fix = stored_fix_for(Store(Path(settings.output_dir)), result)
            if fix is not None:
                console().print(stored_fix_text(fix, result), crop=False)
    return conditions.exit_status_of(result, fail_on)


@click.command("inputs")
@options.one_request_options
@click.option(
    "--save",
    type=click.Path(dir_okay=False),
    help="Write them to a .toml file, which can be edited and passed with --inputs.",
)
@options.as_json
def inputs_command(
    *,
    save: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Show the example inputs of MODEL: names, shapes, dtypes, and how they were made."""
    if save is not None:
        # Only real tensors have values that can be written to a file.
        flags["tier"] = Tier.REAL.value
    model = flags["model"]
    request, settings = _request(flags)
    environments = Environments(settings.cache_folder)
    with spinner(f"starting worker and making inputs of {request.model.name}"):
        example = call_worker(environments, "inputs", request, MadeInputs)
    if save is not None:
        with OsErrorsAs(StoreError, f"{save} cannot be written"):
            Path(save).write_text(example.toml)
    if as_json:
        options.print_json(example)
        return 0
    rows = [
        (
            tensor.name,
            str(list(tensor.shape)) if tensor.shape is not None else "",
            tensor.dtype or "",
            tensor.value or "",
        )
        for tensor in example.inputs
    ]
    rows += [(name, "?", "?", "no rule derives its value") for name in example.unknown]
    out = console()
    out.print(f"{request.model.name}: strategy {example.strategy}, {example.tier.value} tensors")
    out.print(table(("Argument", "Shape", "Dtype", "Value"), rows))
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
def reproduce_command(
    *,
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
    request, settings = _request(flags)
    request = msgspec.structs.replace(request, tier=Tier.REAL, depth=Depth.REDUCED)
    environments = Environments(settings.cache_folder)
    if minimal or issue:
        write = plugins.load(
            "compilewatch.extras.fixes.minimal_reproducer:write", "reproduce --minimal"
        )
        with spinner(f"looking for a minimal reproducer of {request.model.name}"):
            script, note = write(environments, request, at=at, issue=issue)
        click.echo(note, err=True)
    else:
        with spinner(f"starting worker and capturing {request.model.name}"):
            script = call_worker(environments, "reproduce", request, Script).text
    if save is not None:
        with OsErrorsAs(StoreError, f"{save} cannot be written"):
            Path(save).write_text(script)
        click.echo(f"Saved: {Path(save).absolute()}", err=True)
    elif not run_it:
        click.echo(script, nl=False)
    if not run_it:
        return 0
    python = environments.interpreter(request.target.environment).path
    ended = subprocess.run([python, "-B", "-"], input=script.encode(), check=False)
    return ended.returncode if ended.returncode in (0, FOUND) else 2
