"""`compilewatch papers run`: papers through every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from compilewatch.cli import options
from compilewatch.cli.verbs.papers import options as shared
from compilewatch.errors import UsageError
from compilewatch.records.papers import FindingClass


@click.command("run")
@shared.selection
@shared.provider_options
@click.option(
    "--max-usd",
    type=click.FloatRange(min=0, min_open=True),
    help="The most that the selected papers may cost, with what they have cost before.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="The most tokens that the selected papers may use, with earlier ones.",
)
@click.option(
    "--repairs",
    "max_repairs",
    type=click.IntRange(min=0, max=3),
    help="How often the code of a paper may be repaired (default 3).",
)
@click.option(
    "--device-seconds", type=click.FloatRange(min=1), help="Time limit of training a model."
)
@click.option(
    "--targets", metavar="A,B", help="Compile targets of the sweep (default dynamo,export)."
)
@options.output
@options.as_json
def run_verb(
    *,
    folder: str | None,
    provider: str | None,
    model: str | None,
    max_usd: float | None,
    max_tokens: int | None,
    max_repairs: int | None,
    device_seconds: float | None,
    targets: str | None,
    output_dir: str | None,
    as_json: bool,
    **query: Any,
) -> int:
    """Read papers, let the model write code for them, check it, compile it and execute it.

    Stages that have a result are not repeated, and calls that have a reply are not sent again:
    running the same command again continues where it was. The exit status is 1 if something is
    wrong with a paper's code, and 3 if a stage was not run.
    """
    settings = shared.settings_of(
        output_dir,
        folder=folder,
        provider=provider,
        model=model,
        max_repairs=max_repairs,
        device_seconds=device_seconds,
    )
    wanted = shared.query_of(**query)
    from compilewatch.cli.rendering.papers import StageLines, exit_status, print_summaries
    from compilewatch.workflows.papers_run import run_papers

    library = shared.library_of(settings)
    papers = library.find(wanted)
    if not papers:
        raise UsageError("no paper is selected; `compilewatch papers find` shows what there is")
    names = tuple(options.split(targets) or ("dynamo", "export"))
    with StageLines(quiet=as_json) as lines:
        summaries = run_papers(
            settings,
            library,
            shared.provider_of(settings),
            papers,
            targets=names,
            max_usd=max_usd,
            max_tokens=max_tokens,
            observer=lines,
        )
    root = Path(settings.output_dir) / "papers"
    if as_json:
        options.print_json(summaries)
    else:
        print_summaries(summaries, root)
    if all(one.findings and one.findings[0].kind is FindingClass.UNREADABLE for one in summaries):
        raise UsageError(f"no selected paper can be read: {summaries[0].findings[0].evidence}")
    return exit_status(summaries)
