"""`compilewatch merge`: join the shards of one plan into one run."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.api.merge import merge
from compilewatch.cli import completion, conditions, options
from compilewatch.cli.rendering.tables import print_view
from compilewatch.config import load_settings
from compilewatch.store import Store


@click.command("merge")
@click.argument("runs", nargs=-1, required=True, shell_complete=completion.runs)
@conditions.option
@options.output
@options.as_json
def command(
    runs: tuple[str, ...], fail_on: conditions.Conditions, output_dir: str | None, as_json: bool
) -> int:
    """Join RUNS of one plan into a new run.

    RUNS are the ids of stored runs, or folders of runs that were copied from other machines.
    """
    settings = load_settings({"output_dir": output_dir})
    store = Store(Path(settings.output_dir))
    seen = merge(store, [store.open(name) for name in runs], settings)
    print_view(store, seen, as_json)
    return conditions.exit_status(seen, fail_on)
