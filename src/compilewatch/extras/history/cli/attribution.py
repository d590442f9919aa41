"""What `compilewatch compare --attribute` adds: who changed each verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from compilewatch.api.launching import local_launcher
from compilewatch.cli import options
from compilewatch.cli.rendering.tables import changes_table
from compilewatch.config.settings import Settings
from compilewatch.environments import Environments
from compilewatch.extras.history.attribute import Corner, Side, attribute_changes
from compilewatch.extras.history.bisect import preparing
from compilewatch.extras.history.cli.attribution_table import attributions_table
from compilewatch.extras.history.versions import Evaluator
from compilewatch.records import Result
from compilewatch.records.views import RunView
from compilewatch.report.terminal.pieces import console, spaced
from compilewatch.report.wording import plural
from compilewatch.store import Store


def print_attributions(
    store: Store,
    settings: Settings,
    seen: RunView,
    olds: Iterable[Result],
    *,
    limit: int,
    by_place: bool,
    as_json: bool,
) -> None:
    """Print who changed each verdict of a comparison; a line to stderr before each evaluation.

    `olds` are the results that the run is compared with. `limit` is how many changes are evaluated.
    With `by_place`, both sides are environments of this machine.
    """
    evaluator = Evaluator(
        store=store,
        settings=settings,
        launch=lambda chosen, names: local_launcher(chosen, names),
        selection={"attribute": seen.run.id},
    )

    def report(corner: Corner, models: Sequence[str]) -> None:
        count = plural(len(models), "model")
        click.echo(f"{corner.versions}: evaluating {count} on {corner.target.name}", err=True)

    assert seen.baseline is not None
    found = attribute_changes(
        Side.of(seen.baseline, olds),
        Side.of(seen.run, seen.results),
        seen.changes,
        evaluator,
        preparing(Environments(settings.cache_folder), options.show_creation),
        limit=limit,
        by_place=by_place,
        report=report,
    )
    if as_json:
        options.print_json(found)
    else:
        console().print(spaced([changes_table(seen), attributions_table(found)]))
