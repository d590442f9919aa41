"""`compilewatch prune`: stored runs that newer ones have superseded are deleted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.cli.rendering.pieces import console, plain, plain_table, plural
from compilewatch.config.settings import load_settings
from compilewatch.errors import UsageError
from compilewatch.report.wording import memory
from compilewatch.store import Store
from compilewatch.workflows.prune import Candidate, prune, review


@click.command("prune")
@click.option(
    "--keep",
    metavar="N",
    type=click.IntRange(min=1),
    help="Keep the N newest finished runs of each selection.",
)
@click.option(
    "--keep-days",
    "days",
    metavar="D",
    type=click.IntRange(min=1),
    help="Keep what started in the last D days.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@options.output
@options.as_json
def command(
    keep: int | None,
    days: int | None,
    dry_run: bool,
    yes: bool,
    output_dir: str | None,
    as_json: bool,
) -> None:
    """Delete stored runs that newer ones have superseded, after saying which.

    With both rules, a run stays that either keeps. Runs are of one selection where `compare` would
    take one for the other's baseline: the same source, models, targets with modes and
    environments, depth, tier and shard. Whatever N and D are, the newest finished run of each
    selection stays, and so does outputs/latest, a run that is being written, one that waits to be
    published, and the baseline of such a run. An interrupted run goes as a finished one would.

    Exit statuses: 0 done, or nothing to do; 2 wrong input, or a run that cannot be deleted; 130
    interrupted: what is deleted is gone, what is not is whole.
    """
    if keep is None and days is None:
        raise UsageError("say what to keep: --keep N, --keep-days D or both")
    asks = not (yes or dry_run)
    if asks and (as_json or not _somebody_is_there()):
        raise UsageError("nobody can be asked here: add --yes to delete, or --dry-run to look")
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    found = review(store, keep=keep, days=days, now=datetime.now(UTC))
    _, problems = store.scan()
    if not as_json:
        _print(found.superseded, found.held)
        for problem in problems:
            click.echo(f"compilewatch: left alone: {problem}", err=True)
        said = f"{plural(len(found.superseded), 'run')}, {memory(found.freed_bytes)}"
        click.echo(f"To delete: {said}. To keep: {plural(found.kept, 'run')}.")
    if asks and found.superseded and not click.confirm("Delete them?"):
        click.echo("Nothing is deleted.")
        return
    deleted = [] if dry_run else list(prune(store, found))
    if as_json:
        options.print_json({"review": found, "deleted": deleted, "problems": problems})
    elif deleted:
        click.echo(f"Deleted: {said}.")


def _somebody_is_there() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _print(superseded: Sequence[Candidate], held: Sequence[Candidate]) -> None:
    for title, runs in (("To delete", superseded), ("Kept nevertheless", held)):
        if not runs:
            continue
        table = plain_table(title, "Source", "State", "Size", "Why")
        table.columns[3].justify = "right"
        for run in runs:
            table.add_row(
                plain(run.run, "bold"),
                plain(run.source),
                plain(run.state),
                plain(memory(run.bytes)),
                plain(run.why),
            )
        console().print(table)
        click.echo()
