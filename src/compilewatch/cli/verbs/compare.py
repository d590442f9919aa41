"""`compilewatch compare`: what changed between two runs."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import completion, conditions, options
from compilewatch.cli.rendering.pieces import console
from compilewatch.cli.rendering.tables import changes_table
from compilewatch.cli.verbs.sweep import print_view
from compilewatch.config.settings import load_settings
from compilewatch.errors import UsageError
from compilewatch.store import Store
from compilewatch.workflows.view import view, view_between


@click.command("compare")
@click.argument("base", shell_complete=completion.runs)
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option(
    "--environments",
    metavar="A,B",
    help="Compare environment A of BASE with B of RUN (or of BASE, where RUN is left out).",
)
@conditions.option
@options.output
@options.as_json
def command(
    base: str,
    run: str | None,
    environments: str | None,
    fail_on: conditions.Conditions,
    output_dir: str | None,
    as_json: bool,
) -> int:
    """Show what changed from run BASE to RUN (the latest by default).

    A regression is claimed only where both runs gave a verdict. With --environments, which
    verdicts differ between two environments, such as two versions of torch.
    """
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    names = options.split(environments)
    if names is None:
        seen = view(store, store.open(run or "latest"), baseline=store.open(base))
    elif len(names) == 2:
        seen = view_between(store.open(base), store.open(run or base), (names[0], names[1]))
    else:
        raise UsageError("--environments takes two names, such as default,torch-2.9")
    if as_json:
        print_view(store, seen, as_json)
    else:
        console().print(changes_table(seen))
    return conditions.exit_status(seen, fail_on)
