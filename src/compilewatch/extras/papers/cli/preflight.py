"""`compilewatch papers preflight`: what a run needs, and whether it is there."""

from __future__ import annotations

import click

from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared


@click.command("preflight")
@shared.provider_options
@options.as_json
def preflight_verb(*, provider: str | None, model: str | None, as_json: bool) -> int:
    """Show which models can be used, and whether generated code can be confined here.

    With BEDROCK_MODEL_ID or --model, only that model is looked up; nothing is paid. The exit status
    is 1 if something is missing.
    """
    settings = shared.settings_of(provider=provider, model=model)
    from compilewatch.extras.papers.cli.tables import print_preflight
    from compilewatch.extras.papers.view import preflight

    found = preflight(settings)
    if as_json:
        options.print_json(found)
    else:
        print_preflight(found)
    return 0 if found.ready else 1
