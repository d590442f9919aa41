"""`compilewatch papers find`: which papers a query selects."""

from __future__ import annotations

from typing import Any

import click

from compilewatch.cli import options
from compilewatch.extras.papers.cli import options as shared


@click.command("find")
@shared.selection
@options.as_json
def find_verb(
    *,
    folder: str | None,
    as_json: bool,
    **query: Any,
) -> int:
    """List the papers that a query selects, without reading or paying anything.

    Without OPENSEARCH_ENDPOINT, papers are searched in the folder inputs/papers/library. The exit
    status is 3 if no paper is found.
    """
    settings = shared.settings_of(folder=folder)
    found = shared.library_of(settings).find(shared.query_of(**query, required=False))
    if as_json:
        options.print_json(found)
        return 0 if found else 3
    from compilewatch.extras.papers.cli.tables import print_found

    print_found(found)
    return 0 if found else 3
