"""`compilewatch pull`: list the most used models of the Hub, with pinned revisions."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from compilewatch.cli import options
from compilewatch.config import load_settings
from compilewatch.report.wording import plural
from compilewatch.sources.hub.pulled import SORTS, PullReport


@click.command("pull")
@click.option("--top", default=50, show_default=True, type=click.IntRange(min=1))
@click.option("--sort", type=click.Choice(list(SORTS)), default="downloads", show_default=True)
@click.option("--task", help="Only models of this pipeline tag, such as text-generation.")
@click.option("--family", help="Only models of this type, such as llama.")
@click.option("--library", help="Only models of this library, such as transformers.")
@options.as_json
def command(
    top: int, sort: str, task: str | None, family: str | None, library: str | None, as_json: bool
) -> int:
    """Fetch the list of the Hub's most used models and pin their revisions and configurations.

    Only configuration files are fetched, never weights. HF_ENDPOINT and HF_TOKEN are respected. The
    exit status is 3 if the Hub failed before the end; the models fetched until then are kept.
    """
    from compilewatch.sources.hub.pull import pull  # of an extra

    settings = load_settings()
    stderr = Console(stderr=True, highlight=False)
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=as_json) as bar:
        task_id = bar.add_task("listing models", total=top)

        def progress(done: int, total: int) -> None:
            bar.update(task_id, completed=done, total=total, description="pulling")

        def notice(line: str) -> None:
            bar.update(task_id, description="retrying")
            if not as_json:
                stderr.print(line, markup=False)

        report = pull(
            top=top,
            sort=sort,
            task=task,
            family=family,
            library=library,
            output=Path(settings.pulled_dir) / "models.toml",
            progress=progress,
            notice=notice,
        )
    if as_json:
        options.print_json(report)
    else:
        _say(report)
    return 3 if report.partial else 0


def _say(report: PullReport) -> None:
    models = plural(report.models, "model")
    click.echo(f"{models}, {report.configs:,} with a configuration: {report.path}")
    for reason, count in sorted(report.problems.items(), key=lambda kv: -kv[1]):
        click.echo(f"  {count} skipped: {reason}")
    if report.figures:
        click.echo(f"Figures by architecture: {report.figures}")
    if report.partial:
        click.echo(f"Incomplete: {report.message}", err=True)
        if report.kept:
            kept = plural(report.kept, "model")
            click.echo(f"Kept from the earlier list: {kept}.", err=True)
    else:
        click.echo("Check them with: compilewatch sweep")
