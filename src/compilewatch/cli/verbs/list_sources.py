"""`compilewatch list-sources`: where models can come from, and what is missing here."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from compilewatch.cli import options
from compilewatch.config import Places, Settings, load_settings
from compilewatch.contract.libraries import LIBRARIES
from compilewatch.errors import CompilewatchError
from compilewatch.records import Record
from compilewatch.report.terminal import console
from compilewatch.sources import choose_source, source_names
from compilewatch.sources.libraries import PackageSource


class ListedSource(Record, frozen=True, kw_only=True):
    """One source: its package and environment if it is a library, and why it has no models here.

    `models` counts those that are selected by default.
    """

    source: str
    package: str = ""
    version: str = ""
    environment: str = ""
    models: int | None = None
    why: str = ""


def listed_sources(settings: Settings) -> tuple[ListedSource, ...]:
    """Every registered source, libraries first. No model is built or evaluated."""
    libraries = [row.source for row in LIBRARIES.values()]
    others = [name for name in source_names() if name not in libraries]
    return tuple(_listed(name, settings) for name in (*libraries, *others))


def _listed(name: str, settings: Settings) -> ListedSource:
    row = next((row for row in LIBRARIES.values() if row.source == name), None)
    package = version = environment = ""
    places = Places(
        pulled=Path(settings.pulled_dir) / "models.toml",
        manifest=Path(settings.models_file),
        cache=settings.cache_folder,
        outputs=Path(settings.output_dir),
    )
    models, why = None, ""
    try:
        if row is not None:
            package, environment = row.distribution, row.environments[0]
            library = PackageSource(row.name, cache=settings.cache_folder)
            environment, version = library.installed()
        models = len(choose_source(name, places=places)[0].models())
    except CompilewatchError as error:
        why = str(error)
    return ListedSource(
        source=name,
        package=package,
        version=version,
        environment=environment,
        models=models,
        why=why,
    )


@click.command("list-sources")
@options.as_json
def command(as_json: bool) -> None:
    """List the sources of models, the environment of each library, and what is missing here."""
    sources = listed_sources(load_settings())
    if as_json:
        options.print_json(sources)
        return
    titles = ("Source", "Package", "Version", "Environment", "Models", "Missing")
    table = Table(*titles, box=None, pad_edge=False)
    for source in sources:
        models = "" if source.models is None else f"{source.models:,}"
        cells = (
            source.source,
            source.package,
            source.version,
            source.environment,
            models,
            source.why,
        )
        table.add_row(*(Text(cell) for cell in cells))
    console().print(table)
