"""`compilewatch executor status|logs|cancel|fetch`: jobs that were submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from compilewatch.cli import options
from compilewatch.extras.executor.cli.jobs_table import line_of, print_output
from compilewatch.extras.executor.cli.options import client_of, client_options, show


@click.command("status")
@click.argument("key", required=False)
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@client_options
def status_verb(key: str | None, wait: bool, as_json: bool, **flags: Any) -> int:
    """Show the job KEY, or the service and its newest jobs.

    The exit status is 1 for a job that ended in any other way than `done`.
    """
    _, client = client_of(flags)
    if key is not None:
        state = client.wait(key) if wait else client.status(key)
        return show(state, as_json, final=True)
    health, jobs = client.health(), client.jobs()
    if as_json:
        options.print_json({"health": health, "jobs": jobs})
        return 0
    click.echo(
        f"{client.endpoint}: {health.status}, {health.running} running, {health.queued} waiting, "
        f"{health.concurrency} at a time."
    )
    for state in jobs:
        click.echo(line_of(state))
    return 0


@click.command("logs")
@click.argument("key")
@click.option("--stderr", is_flag=True, help="Show what the script wrote to stderr.")
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
@client_options
def logs_verb(key: str, stderr: bool, follow: bool, as_json: bool, **flags: Any) -> int:
    """Show what the job KEY printed. Control characters are replaced."""
    _, client = client_of(flags)
    stream = "stderr" if stderr else "stdout"
    parts = client.follow(key, stream=stream) if follow else client.parts(key, stream=stream)
    if as_json:
        text = b"".join(parts).decode(errors="replace")
        options.print_json({"key": key, "stream": stream, "text": text})
        return 0
    for part in parts:
        print_output(part)
    return 0


@click.command("cancel")
@click.argument("key")
@client_options
def cancel_verb(key: str, as_json: bool, **flags: Any) -> int:
    """Cancel the job KEY and wait until it has ended."""
    _, client = client_of(flags)
    client.cancel(key)
    return show(client.wait(key), as_json)


@click.command("fetch")
@click.argument("key")
@click.option(
    "--to", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where."
)
@client_options
def fetch_verb(key: str, folder: Path, as_json: bool, **flags: Any) -> int:
    """Write the files that the job KEY left in /job/out into a folder."""
    _, client = client_of(flags)
    written = client.fetch(key, folder)
    if as_json:
        options.print_json([str(path) for path in written])
    else:
        click.echo("\n".join(map(str, written)) or f"{key} left no files.")
    return 0
