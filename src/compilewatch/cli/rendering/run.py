"""A stored run on the terminal: its tables and where its report is, or everything as JSON."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from compilewatch.api.summary import summary_of
from compilewatch.cli import options
from compilewatch.cli.rendering.tables import summary_table
from compilewatch.records.views import RunView
from compilewatch.report.terminal.pieces import console
from compilewatch.store import Store


def print_view(store: Store, view: RunView, as_json: bool) -> None:
    """Print the tables of a run and the path of its report, or everything as JSON."""
    if as_json:
        options.print_json(summary_of(store, view))
        return
    console().print(summary_table(view))
    folder = store.open(view.run.id).path
    page = folder / "report" / "index.html"
    if page.exists():
        click.echo(f"\nReport: {_near(page)}")
    else:
        click.echo(f"\nRun: {_near(folder)}")


def _near(path: Path) -> Path:
    with contextlib.suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path
