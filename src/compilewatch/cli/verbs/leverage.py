"""`compilewatch leverage`: what to fix first, by the models that it leaves without graph breaks."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from compilewatch.analysis.leverage import By, FixOrder, leverage, verified_fixes
from compilewatch.analysis.summary import targets_in_order
from compilewatch.api.stored_fixes import stored_fixes
from compilewatch.cli import completion, options
from compilewatch.cli.rendering.fixes import fixes_table
from compilewatch.config import load_settings
from compilewatch.errors import UsageError, did_you_mean
from compilewatch.records import Result
from compilewatch.report.terminal import console
from compilewatch.store import Store


@click.command("leverage")
@click.argument("run", default="latest", shell_complete=completion.runs)
@click.option(
    "--by",
    type=click.Choice([member.value for member in By]),
    default=By.LINE.value,
    show_default=True,
    help="line: one reason in one function; id: one reason (GB id) wherever it occurs.",
)
@click.option(
    "--order",
    type=click.Choice([member.value for member in FixOrder]),
    default=FixOrder.MODELS.value,
    show_default=True,
    help="Choose each step for the models, or for the downloads, that it gains.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many steps."
)
@click.option(
    "--target",
    "label",
    metavar="LABEL",
    help="Only this target, such as dynamo/train (default: the first one with graph breaks).",
)
@options.output
@options.as_json
def command(
    *,
    run: str,
    by: str,
    order: str,
    top: int,
    label: str | None,
    output_dir: str | None,
    as_json: bool,
) -> None:
    """Show what to fix first, so that most models of RUN have no graph break any more.

    Each step names a line (or an id of PyTorch's registry of graph breaks) and the models without
    any graph break once it is fixed too. RUN is the latest run by default; nothing is evaluated.
    """
    stored = Store(Path(load_settings({"output_dir": output_dir}).output_dir)).open(run)
    results = stored.results()
    if label is not None:
        _check_label(label, results, stored.run.id)
    steps = leverage(results, by=By(by), order=FixOrder(order), top=top, target=label)
    fixes, notes = stored_fixes(stored)
    for note in (*stored.damaged, *notes):
        click.echo(f"note: {note}", err=True)
    verified = verified_fixes(steps, results, fixes)
    if as_json:
        options.print_json({**msgspec.to_builtins(steps), "verified": verified})
        return
    click.echo(f"Run {stored.run.id}")
    console().print(fixes_table(steps, verified))


def _check_label(label: str, results: tuple[Result, ...], run: str) -> None:
    known = targets_in_order(results)
    if label not in known:
        hint = did_you_mean(label, known) or f"; it has {', '.join(known) or 'no results'}"
        raise UsageError(f"run {run} has no target {label!r}{hint}")
