"""`compilewatch papers run`: papers through every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from compilewatch.api.selection import environments_for, split
from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared
from compilewatch.extras.papers.settings import PapersSettings


@click.command("run")
@shared.selection
@shared.provider_options
@shared.budget_options
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
    "--max-device-seconds",
    type=click.FloatRange(min=1),
    help="The most time that the selected papers may be trained, with earlier runs.",
)
@click.option(
    "--targets", metavar="A,B", help="Compile targets of the sweep (default dynamo,export)."
)
@click.option(
    "--trainium",
    is_flag=True,
    help="Start the Trainium instance when a model is to be trained; afterwards stop it, unless "
    "anybody's job runs.",
)
@click.option(
    "--state",
    metavar="FILE",
    help="What `trainium down --state` needs to stop the instance if this run is killed.",
)
@shared.jobs
@options.output
@options.as_json
def run_verb(
    *,
    folder: str | None,
    provider: str | None,
    model: str | None,
    max_repairs: int | None,
    device_seconds: float | None,
    max_device_seconds: float | None,
    targets: str | None,
    trainium: bool,
    state: str | None,
    jobs: int,
    output_dir: str | None,
    as_json: bool,
    **flags: Any,
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
    budget, query = shared.budget_of(flags, settings)
    wanted = shared.query_of(**query)
    from compilewatch.extras.papers.cli.tables import exit_status
    from compilewatch.extras.papers.pipeline_parts import PaperOptions

    names = tuple(split(targets) or ("dynamo", "export"))
    environment = settings.of(PapersSettings).environment
    named = (environment,) if environment else ()
    chosen = PaperOptions(
        targets=names,
        environments=named or environments_for(names, settings),
        named=named,
        budget=budget,
        max_device_seconds=max_device_seconds,
        jobs=jobs,
        trainium=trainium,
        state=Path(state) if state else None,
    )
    return exit_status(shared.process(settings, wanted, chosen, as_json=as_json))
