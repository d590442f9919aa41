"""`compilewatch papers show`: the code that was written for a paper."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared


@click.command("show")
@click.argument("paper")
@click.option("--version", "number", type=click.IntRange(min=0), help="A version (default: last).")
@options.output
@options.as_json
def show_verb(*, paper: str, number: int | None, output_dir: str | None, as_json: bool) -> int:
    """Print the code of a paper, with the findings about it and its provenance."""
    settings = shared.settings_of(output_dir)
    from compilewatch.extras.papers.cli.tables import print_generation
    from compilewatch.extras.papers.view import generation_of

    generation, findings = generation_of(Path(settings.output_dir), paper, number)
    if as_json:
        options.print_json(generation)
    else:
        print_generation(generation, findings)
    return 0
