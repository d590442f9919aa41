"""`compilewatch show`: what is stored about a model."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from compilewatch.analysis.rows import target_order
from compilewatch.cli import options
from compilewatch.cli.excerpt import source_excerpt
from compilewatch.cli.panel import model_panel, row_panel
from compilewatch.cli.pieces import console
from compilewatch.config import load_settings
from compilewatch.errors import UnknownModelError
from compilewatch.records import Result
from compilewatch.store import Store, StoredRun


@click.command("show")
@click.argument("model")
@click.option("--run", "reference", help="A run (default: the newest that has the model).")
@options.output
@options.as_json
def command(model: str, reference: str | None, output_dir: str | None, as_json: bool) -> None:
    """Show the row of MODEL, which layer fails first, and its result on each target and mode."""
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    runs = (store.open(reference),) if reference else store.runs()
    stored, results = _newest(model, runs)
    if as_json:
        options.print_json(results)
        return
    click.echo(f"Run {stored.run.id}")
    results.sort(key=lambda result: target_order(result.request.target))
    if len(results) > 1:
        console().print(row_panel(results))
    for number, result in enumerate(results):
        if number:
            click.echo()
        console().print(model_panel(result, source_excerpt))
    page = next(iter(sorted((stored.path / "report" / "models").glob(f"{model}*.html"))), None)
    if page is not None:
        click.echo(f"\nPage: {page}")


def _newest(model: str, runs: tuple[StoredRun, ...]) -> tuple[StoredRun, list[Result]]:
    """Raises UnknownModelError with near names."""
    known: set[str] = set()
    for stored in runs:
        results = stored.results()
        named = {r.request.model.name: r for r in results}
        wanted = {name for name in named if name.lower() == model.lower()}
        found = [r for r in results if r.request.model.name in wanted]
        if found:
            return stored, found
        known |= set(named)
    near = difflib.get_close_matches(model, known, n=4, cutoff=0.5)
    hint = f"near: {', '.join(near)}" if near else "`compilewatch explain` asks about any model"
    raise UnknownModelError(f"no stored result of {model!r}; {hint}")
