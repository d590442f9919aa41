"""`compilewatch papers list`: all stored papers."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared


@click.command("list")
@options.output
@options.as_json
def list_verb(*, output_dir: str | None, as_json: bool) -> int:
    """List the stored papers with what became of them and what they cost."""
    settings = shared.settings_of(output_dir)
    from compilewatch.extras.papers.cli.tables import print_summaries
    from compilewatch.extras.papers.store import PaperStore
    from compilewatch.extras.papers.view import summaries

    found = summaries(Path(settings.output_dir))
    if as_json:
        options.print_json(found)
    else:
        outputs = Path(settings.output_dir)
        print_summaries(found, outputs / "papers", damaged=PaperStore(outputs).damaged())
    return 0
