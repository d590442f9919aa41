"""`compilewatch prune`: delete stored runs that newer ones have superseded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from compilewatch.api.prune import Candidate, prune, review
from compilewatch.cli import options
from compilewatch.config import load_settings
from compilewatch.errors import UsageError
from compilewatch.report.terminal import console, plain, plain_table
from compilewatch.report.wording import memory, plural
from compilewatch.store import Store


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
    help="Keep the runs that started in the last D days.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option(
    "--yes", is_flag=True, help="Delete without confirmation; required if there is no terminal."
)
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
    """Delete stored runs that newer ones have superseded, after listing them.

    With both rules, a run is kept if either rule keeps it. Two runs belong to the same selection
    if `compare` would use one as the baseline of the other: the same source, models, targets with
    modes and environments, depth, tier and shard. Whatever N and D are, these runs are kept: the
    newest finished run of each selection, outputs/latest, a run that is being written, a run that
    waits to be published, and the baseline of such a run. An interrupted run is treated like a
    finished one.

    Exit statuses: 0 success, or nothing to do; 2 wrong input, or a run that cannot be deleted; 130
    interrupted: each run is then either deleted or complete.
    """
    if keep is None and days is None:
        raise UsageError("say what to keep: --keep N, --keep-days D or both")
    confirm = not (yes or dry_run)
    if confirm and (as_json or not _is_interactive()):
        raise UsageError("there is no terminal to confirm on: add --yes to delete, or --dry-run")
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    pruning = review(store, keep=keep, days=days, now=datetime.now(UTC))
    _, problems = store.scan()
    if not as_json:
        _print(pruning.superseded, pruning.held)
        for problem in problems:
            click.echo(f"compilewatch: not deleted: {problem}", err=True)
        size = f"{plural(len(pruning.superseded), 'run')}, {memory(pruning.freed_bytes)}"
        click.echo(f"To delete: {size}. To keep: {plural(pruning.kept, 'run')}.")
    if confirm and pruning.superseded and not click.confirm("Delete them?"):
        click.echo("Nothing was deleted.")
        return
    deleted = [] if dry_run else list(prune(store, pruning))
    if as_json:
        options.print_json({"review": pruning, "deleted": deleted, "problems": problems})
    elif deleted:
        click.echo(f"Deleted: {size}.")


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _print(superseded: Sequence[Candidate], kept: Sequence[Candidate]) -> None:
    for title, runs in (("To delete", superseded), ("Superseded, but kept", kept)):
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
