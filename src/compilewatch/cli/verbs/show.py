"""`compilewatch show`: what is stored about a model."""

from __future__ import annotations

import contextlib
import difflib
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click

from compilewatch.analysis.rows import target_order
from compilewatch.cli import completion, options
from compilewatch.cli.rendering.excerpt import excerpt_of
from compilewatch.cli.rendering.panel import model_panel, row_panel
from compilewatch.cli.rendering.pieces import console
from compilewatch.config.settings import load_settings
from compilewatch.errors import ConfigError, StoreError, UnknownModelError, UsageError
from compilewatch.records import Build, ConfigBuild, FactoryBuild, ModelSpec, Result
from compilewatch.sources.own import dotted_model, own_model
from compilewatch.sources.select import in_pool
from compilewatch.store import Store, StoredRun, restore_artifacts


@click.command("show")
@click.argument("model", shell_complete=completion.models)
@click.option(
    "--run",
    "reference",
    shell_complete=completion.runs,
    help="A run (default: the newest with a verdict on it).",
)
@click.option(
    "--artifacts",
    "folder",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write its artifacts there, decompressed: DIRECTORY/TARGET/…",
)
@click.option("--open", "in_browser", is_flag=True, help="Open tlparse's pages in a browser.")
@options.output
@options.verbose
@options.as_json
def command(
    model: str,
    reference: str | None,
    folder: Path | None,
    in_browser: bool,
    output_dir: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Show the row of MODEL, which layer fails first, and its result on each target and mode."""
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    runs = (store.open(reference),) if reference else store.runs()
    stored, results = _newest(model, runs, named=reference is not None)
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
        console().print(model_panel(result, excerpt_of(result.request), verbose=verbose))
    from compilewatch.report.pages import file_name

    page = stored.path / "report" / "models" / file_name(results[0].request.model.name, set())
    if page.exists():
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


def _newest(
    model: str, runs: tuple[StoredRun, ...], *, named: bool = False
) -> tuple[StoredRun, list[Result]]:
    """The newest run with a verdict on a model, else the newest that has it, and its results.

    Raises UnknownModelError with near names.
    """
    known: dict[str, ModelSpec] = {}
    passed_over: list[tuple[StoredRun, list[Result]]] = []
    for stored in runs:
        try:
            results = stored.results()
        except StoreError as error:
            if named:
                raise
            click.echo(f"compilewatch: {error}; looking at older runs", err=True)
            continue
        specs = {result.request.model.name: result.request.model for result in results}
        spec = _meant(model, list(specs.values()))
        known |= specs
        found = [r for r in results if spec is not None and r.request.model.name == spec.name]
        if found and (named or any(result.is_verdict for result in found)):
            if passed_over:
                newer = ", ".join(each.run.id for each, _ in passed_over)
                click.echo(f"Newer, without a verdict on it: {newer}", err=True)
            return stored, found
        passed_over += [(stored, found)] if found else []
    if passed_over:
        return passed_over[0]
    names = {name.lower(): name for name in (*known, *(spec.family for spec in known.values()))}
    near = difflib.get_close_matches(model.lower(), names, n=4, cutoff=0.5)
    asks = "`compilewatch explain` asks about any model"
    hint = f"near: {', '.join(names[name] for name in near)}" if near else asks
    raise UnknownModelError(f"no stored result of {model!r}; {hint}")


def _meant(model: str, stored: Sequence[ModelSpec]) -> ModelSpec | None:
    """The stored model that `explain` would take for this name: by name or family, or one's own."""
    if (found := in_pool(model, stored)) is not None:
        return found
    with contextlib.suppress(ConfigError):
        own = own_model(model) or dotted_model(model)
        if own is not None:
            return next((spec for spec in stored if _same(spec.build, own.build)), None)
    return None


def _same(one: Build, other: Build) -> bool:
    """Whether two builds are of one factory or configuration, as it was or is now."""
    if isinstance(one, FactoryBuild) and isinstance(other, FactoryBuild):
        return one.factory == other.factory
    if isinstance(one, ConfigBuild) and isinstance(other, ConfigBuild):
        return one.config_file == other.config_file
    return False
