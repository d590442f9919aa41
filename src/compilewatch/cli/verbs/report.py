"""`compilewatch report`: write the report files of a stored run again."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.api.publish import load_sinks, publish
from compilewatch.api.view import view
from compilewatch.cli import completion, options
from compilewatch.config import load_settings
from compilewatch.errors import SinkError
from compilewatch.plan import load_expectations
from compilewatch.store import Store


@click.command("report")
@click.argument("run", default="latest", shell_complete=completion.runs)
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=completion.runs,
    help="Compare with RUN instead of the run's own baseline.",
)
@options.output
@options.as_json
def command(run: str, baseline: str | None, output_dir: str | None, as_json: bool) -> None:
    """Write the HTML report, junit.xml and metrics.prom of RUN (the latest by default)."""
    settings = load_settings({"output_dir": output_dir})
    store = Store(Path(settings.output_dir))
    stored = store.open(run)
    seen = view(
        store,
        stored,
        baseline=baseline,
        expectations=load_expectations(Path(settings.expectations_file)),
    )
    for note in seen.notes:
        click.echo(f"note: {note}", err=True)
    published = publish(store, seen, load_sinks(settings.sinks, settings))
    if as_json:
        options.print_json({"said": published.lines, "failures": published.failures})
    else:
        for line in published.lines:
            path = stored.path / line
            click.echo(path if path.is_file() else line)
    if published.failures:
        raise SinkError("; ".join(published.notes))
