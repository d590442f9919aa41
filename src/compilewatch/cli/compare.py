"""`compilewatch compare`: what changed between two runs."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.cli.render import changes_table, console
from compilewatch.cli.sweep import FAIL_ON, failed_on, print_view
from compilewatch.config import load_settings
from compilewatch.publishing import view
from compilewatch.store import Store


@click.command("compare")
@click.argument("base")
@click.argument("run", default="latest")
@click.option("--fail-on", type=FAIL_ON, help="Exit with 1 if there is one.")
@options.output
@options.as_json
def command(base: str, run: str, fail_on: str | None, output_dir: str | None, as_json: bool) -> int:
    """Show what changed from run BASE to RUN (the latest by default).

    A regression is claimed only where both runs gave a verdict.
    """
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    seen = view(store, store.open(run), baseline=store.open(base))
    if as_json:
        print_view(store, seen, as_json)
    else:
        console().print(changes_table(seen))
    return failed_on(seen, fail_on)
