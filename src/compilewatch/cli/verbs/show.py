"""`compilewatch show`: show the stored results of a model."""

from __future__ import annotations

import contextlib
import difflib
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click

from compilewatch.analysis.summary import target_order
from compilewatch.cli import completion, options
from compilewatch.config import load_settings
from compilewatch.errors import ConfigError, StoreError, UnknownModelError, UsageError
from compilewatch.records import Build, ConfigBuild, FactoryBuild, ModelSpec, Result
from compilewatch.report.terminal import console, excerpt_of, model_panel, row_panel
from compilewatch.sources.own import dotted_model, own_model
from compilewatch.sources.select import in_pool
from compilewatch.store import Store, StoredRun, restore_artifacts


@click.command("show")
@click.argument("model", shell_complete=completion.models)
@click.option(
    "--run",
    "reference",
    shell_complete=completion.runs,
    help="The run (default: the newest with a verdict on the model).",
)
@click.option(
    "--artifacts",
    "folder",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the artifacts to this folder, decompressed: DIRECTORY/TARGET/…",
)
@click.option("--open", "in_browser", is_flag=True, help="Open the pages of tlparse in a browser.")
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
    """Show the stored results of MODEL on each target and mode, and which target fails first."""
    store = Store(Path(load_settings({"output_dir": output_dir}).output_dir))
    runs = (store.open(reference),) if reference else store.runs()
    stored, results = _newest(model, runs, named=reference is not None)
    names = tuple(dict.fromkeys(name for result in results for name in result.artifacts))
    if in_browser:
        _open(stored, names, folder)
    elif folder is not None and not restore_artifacts(names, stored.path, folder):
        raise UsageError(f"run {stored.run.id} has no artifacts of this model")
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
    from compilewatch.report.html import file_name

    page = stored.path / "report" / "models" / file_name(results[0].request.model.name, set())
    if page.exists():
        click.echo(f"\nPage: {page}")


def _open(stored: StoredRun, names: Sequence[str], folder: Path | None) -> None:
    """Write artifacts to `folder`, or to a temporary one, and open tlparse's pages among them.

    Raises UsageError if there are no such pages, or no browser.
    """
    if not any(name.endswith("/tlparse.zip") for name in names):
        raise UsageError(f"run {stored.run.id} has no pages of tlparse for this model")
    # The folder is not deleted: the browser still reads it after this process has ended.
    folder = folder or Path(tempfile.mkdtemp(prefix="compilewatch-pages-"))
    for path in restore_artifacts(names, stored.path, folder):
        is_index = path.parts[-2:] == ("tlparse", "index.html")
        if is_index and not webbrowser.open(path.absolute().as_uri()):
            raise UsageError(f"no browser can be started; open this file yourself: {path}")


def _newest(
    model: str, runs: tuple[StoredRun, ...], *, named: bool = False
) -> tuple[StoredRun, list[Result]]:
    """The newest run with a verdict on a model, else the newest with any result, and its results.

    Raises UnknownModelError with similar names.
    """
    known: dict[str, ModelSpec] = {}
    passed_over: list[tuple[StoredRun, list[Result]]] = []
    for stored in runs:
        try:
            results = stored.results()
        except StoreError as error:
            if named:
                raise
            click.echo(f"compilewatch: {error}; reading older runs instead", err=True)
            continue
        for line in stored.damaged:
            click.echo(f"note: {line}", err=True)
        specs = {result.request.model.name: result.request.model for result in results}
        spec = _meant(model, list(specs.values()))
        known |= specs
        of_model = [r for r in results if spec is not None and r.request.model.name == spec.name]
        if of_model and (named or any(result.is_verdict for result in of_model)):
            if passed_over:
                newer = ", ".join(run.run.id for run, _ in passed_over)
                click.echo(f"Newer runs without a verdict on this model: {newer}", err=True)
            return stored, of_model
        passed_over += [(stored, of_model)] if of_model else []
    if passed_over:
        return passed_over[0]
    names = {name.lower(): name for name in (*known, *(spec.family for spec in known.values()))}
    near = difflib.get_close_matches(model.lower(), names, n=4, cutoff=0.5)
    explain = "`compilewatch explain` checks any model"
    hint = f"similar names: {', '.join(names[name] for name in near)}" if near else explain
    raise UnknownModelError(f"no stored result of {model!r}; {hint}")


def _meant(model: str, stored: Sequence[ModelSpec]) -> ModelSpec | None:
    """The stored model that `explain` would choose for this name (also for a path or module)."""
    if (stored_spec := in_pool(model, stored)) is not None:
        return stored_spec
    with contextlib.suppress(ConfigError):
        own = own_model(model) or dotted_model(model)
        if own is not None:
            return next((spec for spec in stored if _same(spec.build, own.build)), None)
    return None


def _same(one: Build, other: Build) -> bool:
    """Whether two builds are of the same factory or configuration file, whatever its content."""
    if isinstance(one, FactoryBuild) and isinstance(other, FactoryBuild):
        return one.factory == other.factory
    if isinstance(one, ConfigBuild) and isinstance(other, ConfigBuild):
        return one.config_file == other.config_file
    return False
