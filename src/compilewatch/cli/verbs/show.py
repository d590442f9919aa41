"""`compilewatch show`: what is stored about a model."""

from __future__ import annotations

import difflib
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click

from compilewatch.analysis.rows import target_order
from compilewatch.cli import options
from compilewatch.cli.rendering.excerpt import source_excerpt
from compilewatch.cli.rendering.panel import model_panel, row_panel
from compilewatch.cli.rendering.pieces import console
from compilewatch.config.settings import load_settings
from compilewatch.errors import UnknownModelError, UsageError
from compilewatch.records import Result
from compilewatch.store import Store, StoredRun, restore_artifacts


@click.command("show")
@click.argument("model")
@click.option("--run", "reference", help="A run (default: the newest that has the model).")
@click.option(
    "--artifacts",
    "folder",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write its artifacts there, decompressed: DIRECTORY/TARGET/…",
)
@click.option("--open", "in_browser", is_flag=True, help="Open tlparse's pages in a browser.")
@options.output
@options.as_json
def command(
    model: str,
    reference: str | None,
    folder: Path | None,
    in_browser: bool,
    output_dir: str | None,
    as_json: bool,
) -> None:
    """Show the row of MODEL, which layer fails first, and its result on each target and mode."""
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    runs = (store.open(reference),) if reference else store.runs()
    stored, results = _newest(model, runs)
    names = tuple(dict.fromkeys(name for result in results for name in result.artifacts))
    if in_browser:
        _open(stored, names, folder)
    elif folder is not None and not restore_artifacts(names, stored.path, folder):
        raise UsageError(f"run {stored.run.id} holds no artifacts of this model")
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


def _open(stored: StoredRun, names: Sequence[str], folder: Path | None) -> None:
    """Write artifacts to `folder`, or to a temporary one, and open tlparse's pages among them.

    Raises UsageError where there are none, or no browser.
    """
    if not any(name.endswith(("/tlparse.zip", "/tlparse/index.html")) for name in names):
        raise UsageError(f"run {stored.run.id} holds no pages of tlparse of this model")
    # Not deleted: the browser reads on when this process is gone.
    folder = folder or Path(tempfile.mkdtemp(prefix="compilewatch-pages-"))
    for path in restore_artifacts(names, stored.path, folder):
        is_index = path.parts[-2:] == ("tlparse", "index.html")
        if is_index and not webbrowser.open(path.absolute().as_uri()):
            raise UsageError(f"no browser starts here; open this file elsewhere: {path}")


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
