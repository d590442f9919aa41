"""`compilewatch publish`: stored runs to the services that are set."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import completion, options
from compilewatch.config.settings import load_settings
from compilewatch.errors import UsageError
from compilewatch.plan.expectations import load_expectations
from compilewatch.sinks import ADDRESSES, remote_sinks
from compilewatch.store import Store
from compilewatch.workflows.publish import load_sinks, publish, report_health
from compilewatch.workflows.view import view

IN_PART = 3


@click.command("publish")
@click.argument("run", default="latest", shell_complete=completion.runs)
@click.option("--to", metavar="SINK,…", help="Only to these (default: all that have an address).")
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=completion.runs,
    help="Compare with RUN instead of its own baseline.",
)
@options.output
@options.as_json
def command(
    run: str, to: str | None, baseline: str | None, output_dir: str | None, as_json: bool
) -> int:
    """Send RUN (the latest by default), and what waits in the spool, to the services that are set.

    Publishing twice changes nothing. What a service does not take is kept, and sent with the next
    publish; the exit status is 3 then.
    """
    settings = load_settings({"output_dir": output_dir})
    names = options.split(to) or list(remote_sinks(settings))
    if not names:
        known = ", ".join(ADDRESSES.values())
        raise UsageError(f"nowhere to publish to: set one of {known} in compilewatch.toml")
    sinks = load_sinks(names, settings)
    store = Store(Path(settings.output_dir))
    stored = store.open(run)
    if stored.path.resolve().parent != store.root.resolve():
        raise UsageError(
            f"{stored.path} is not in {store.root}: name its folder of runs with --output, or take "
            "it over with compilewatch merge"
        )
    if stored.run.state == "running":
        raise UsageError(f"run {stored.run.id} is still being written: wait for it to end")
    if stored.run.shard is not None and "pushgateway" in names:
        raise UsageError(
            f"run {stored.run.id} is shard {stored.run.shard}: its metrics would replace those of "
            "the whole; compilewatch merge joins the shards, and that run can be published"
        )
    expectations = load_expectations(Path(settings.expectations_file))
    seen = view(store, stored, baseline=baseline, expectations=expectations)
    published = publish(store, seen, sinks)
    report_health(store, settings, published)
    if as_json:
        options.print_json({"said": published.lines, "failures": published.failures})
    else:
        for line in published.lines:
            click.echo(line)
        for note in published.notes:
            click.echo(f"compilewatch: {note}", err=True)
    return IN_PART if published.failures else 0
