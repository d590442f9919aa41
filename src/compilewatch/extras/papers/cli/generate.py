"""`compilewatch papers generate`: the code for a paper, without running it."""

from __future__ import annotations

from typing import Any

import click

from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared


@click.command("generate")
@shared.selection
@shared.provider_options
@shared.budget_options
@shared.jobs
@options.output
@options.as_json
def generate_verb(
    *,
    folder: str | None,
    provider: str | None,
    model: str | None,
    jobs: int,
    output_dir: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Let the model plan and write the code for papers; nothing is reviewed or run.

    `papers show` prints the code, and `papers run` continues from here without repeating a call.
    The exit status is 1 if there is no code for a paper.
    """
    settings = shared.settings_of(output_dir, folder=folder, provider=provider, model=model)
    budget, query = shared.budget_of(flags, settings)
    wanted = shared.query_of(**query)
    from compilewatch.extras.papers.pipeline_parts import PaperOptions
    from compilewatch.extras.papers.records import PipelineStage

    chosen = PaperOptions(budget=budget, jobs=jobs, until=PipelineStage.GENERATE)
    summaries = shared.process(settings, wanted, chosen, as_json=as_json)
    return int(any(one.generation is None for one in summaries))
