"""`compilewatch papers publish`: metrics, events and the report page of all stored papers."""

from __future__ import annotations

from pathlib import Path

import click

from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared


@click.command("publish")
@options.output
@options.as_json
def publish_verb(*, output_dir: str | None, as_json: bool) -> int:
    """Write the report page, and send metrics to the services that are set.

    The services are the Pushgateway, Loki and CloudWatch (`cloudwatch.enabled`). Publishing again
    changes nothing. The exit status is 3 if a service did not accept the metrics.
    """
    settings = shared.settings_of(output_dir)
    from compilewatch.extras.papers.publication import publish_papers

    published = publish_papers(Path(settings.output_dir), settings)
    if as_json:
        options.print_json({"lines": published.lines, "failures": published.failures})
    else:
        for line in published.lines:
            click.echo(line)
        for note in published.notes:
            click.echo(f"compilewatch: {note}", err=True)
    return 3 if published.failures else 0
