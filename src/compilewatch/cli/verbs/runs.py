"""`compilewatch runs`: list the stored runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.cli.rendering.tables import runs_table
from compilewatch.config import load_settings
from compilewatch.records import Status
from compilewatch.report.terminal import console
from compilewatch.store import Store


@click.command("runs")
@options.output
@options.as_json
def command(output_dir: str | None, as_json: bool) -> None:
    """List the stored runs, newest first, with the requests that pass out of those planned."""
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    stored, problems = store.scan()
    runs = [one.run for one in stored]
    if as_json:
        options.print_json(runs)
    else:
        outcomes, damaged = store.outcomes([run.id for run in runs])
        problems += tuple(damaged)
        passed = Counter(one.run for one in outcomes if one.status == Status.PASS)
        console().print(runs_table(runs, passed))
    for problem in problems:
        click.echo(f"compilewatch: {problem}", err=True)
