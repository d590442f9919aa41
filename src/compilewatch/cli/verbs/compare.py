"""`compilewatch compare`: what changed between two runs."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import completion, conditions, options
from compilewatch.cli.rendering.pieces import console
from compilewatch.cli.rendering.tables import changes_table
from compilewatch.cli.verbs.sweep import print_view
from compilewatch.config.settings import load_settings
from compilewatch.contract.devices import canonical
from compilewatch.errors import UsageError
from compilewatch.store import Store
from compilewatch.workflows.view import view, view_between, view_between_devices


@click.command("compare")
@click.argument("base", shell_complete=completion.runs)
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option(
    "--environments",
    metavar="A,B",
    help="Compare environment A of BASE with environment B of RUN (or of BASE without RUN).",
)
@click.option(
    "--devices",
    metavar="A,B",
    help="Compare device A of BASE with device B of RUN (or of BASE without RUN).",
)
@conditions.option
@options.output
@options.as_json
def command(
    base: str,
    run: str | None,
    environments: str | None,
    devices: str | None,
    fail_on: conditions.Conditions,
    output_dir: str | None,
    as_json: bool,
) -> int:
    """Show what changed from run BASE to RUN (the latest by default).

    A regression is reported only if both runs have a verdict. --environments shows which verdicts
    differ between two environments, such as two versions of torch, and --devices those that differ
    between two devices, such as cpu,cuda.
    """
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    if environments is not None and devices is not None:
        raise UsageError("give either --environments or --devices")
    if environments is not None:
        names = _two(environments, "--environments", "default,torch-2.9")
        seen = view_between(store.open(base), store.open(run or base), names)
    elif devices is not None:
        old, new = map(canonical, _two(devices, "--devices", "cpu,cuda"))
        seen = view_between_devices(store.open(base), store.open(run or base), (old, new))
    else:
        seen = view(store, store.open(run or "latest"), baseline=store.open(base))
    if as_json:
        print_view(store, seen, as_json)
    else:
        console().print(changes_table(seen))
    return conditions.exit_status(seen, fail_on)


def _two(text: str, option: str, example: str) -> tuple[str, str]:
    """The two names of an option. Raises UsageError for fewer or more."""
    names = options.split(text) or []
    if len(names) != 2:
        raise UsageError(f"{option} takes two names, such as {example}")
    return names[0], names[1]
