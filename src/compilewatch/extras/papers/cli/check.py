"""`compilewatch papers check`: the outcome of every stage of a paper, with evidence."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared


@click.command("check")
@click.argument("paper")
@options.output
@options.as_json
def check_verb(*, paper: str, output_dir: str | None, as_json: bool) -> int:
    """Show the outcome of each stage of a paper, with its evidence.

    The exit status is 1 if something is wrong, and 3 if a stage was not run.
    """
    settings = shared.settings_of(output_dir)
    from compilewatch.extras.papers.cli.tables import exit_status, print_check
    from compilewatch.extras.papers.view import summary_of

    summary, folder = summary_of(Path(settings.output_dir), paper)
    if as_json:
        options.print_json(summary)
    else:
        print_check(summary, folder)
    return exit_status((summary,))
