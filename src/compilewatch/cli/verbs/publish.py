"""`compilewatch publish`: send stored runs to the configured services."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.api.publish import load_sinks, publish, report_health
from compilewatch.api.selection import split
from compilewatch.api.view import view
from compilewatch.cli import completion, options
from compilewatch.config import load_settings
from compilewatch.errors import UsageError
from compilewatch.plan import load_expectations
from compilewatch.sinks import ADDRESSES, remote_sinks
from compilewatch.store import Store

IN_PART = 3


@click.command("publish")
@click.argument("run", default="latest", shell_complete=completion.runs)
@click.option("--to", metavar="SINK,…", help="Send to these only (default: all with an address).")
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=completion.runs,
    help="Compare with RUN instead of the run's own baseline.",
)
@click.option(
    "--replace",
    is_flag=True,
    default=None,
    help="Replace the metrics of another selection of models in the Pushgateway.",
)
@options.output
@options.as_json
def command(
    run: str,
    to: str | None,
    baseline: str | None,
    replace: bool | None,
    output_dir: str | None,
    as_json: bool,
) -> int:
    """Send RUN (the latest by default) and the runs in the spool to the configured services.

    The metrics of a run replace those of the run before. A run that selects other models than the
    published ones is not sent to the Pushgateway without --replace.

    Publishing the same run twice changes nothing. If a service does not accept a run, the run stays
    in the spool for the next publication, and the exit status is 3.
    """
    settings = load_settings({"output_dir": output_dir, "pushgateway_replace": replace})
    names = split(to) or list(remote_sinks(settings))
    if not names:
        known = ", ".join(ADDRESSES.values())
        raise UsageError(f"no service is configured: set one of {known} in compilewatch.toml")
    sinks = load_sinks(names, settings)
    store = Store(Path(settings.output_dir))
    stored = store.open(run)
    if stored.path.resolve().parent != store.root.resolve():
        raise UsageError(
            f"{stored.path} is not in {store.root}: name its folder of runs with --output, or copy "
            "it into that folder with compilewatch merge"
        )
    if stored.run.state == "running":
        raise UsageError(f"run {stored.run.id} is still being written: wait until it has finished")
    if stored.run.shard is not None and "pushgateway" in names:
        raise UsageError(
            f"run {stored.run.id} is shard {stored.run.shard}: its metrics would replace those of "
            "the complete run; join the shards with compilewatch merge and publish the merged run"
        )
    expectations = load_expectations(Path(settings.expectations_file))
    seen = view(store, stored, baseline=baseline, expectations=expectations)
    published = publish(store, seen, sinks)
    report_health(store, settings, published)
    if as_json:
        options.print_json(
            {"said": published.lines, "failures": published.failures, "notes": seen.notes}
        )
    else:
        for note in seen.notes:
            click.echo(f"compilewatch: {note}", err=True)
        for line in published.lines:
            click.echo(line)
        for note in published.notes:
            click.echo(f"compilewatch: {note}", err=True)
    return IN_PART if published.failures else 0
