"""Sources of models: one Protocol, one row for each in `SOURCES`, and the meaning of `auto`.

What reads a package of models or the pulled list is imported where such a source is chosen.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

import msgspec

from compilewatch import extras, plugins
from compilewatch.config import Places, load_settings
from compilewatch.contract.libraries import LIBRARIES
from compilewatch.errors import SourceError
from compilewatch.records import ModelSpec

ALL = "all-libraries"
"""The source of the models of all libraries."""

PIPELINE = "Pipeline"
"""The end of the names of pipelines, which consist of several models."""

ENTRY_POINTS = "compilewatch.sources"
"""The entry-point group in which other packages register sources, `name = "module:Class"`."""

PACKAGES = {row.source: name for name, row in LIBRARIES.items() if row.implementation}
"""Sources of the models of a package besides Transformers -> its library."""

SOURCES: dict[str, str] = {
    "library": "compilewatch.sources.transformers:LibrarySource",
    **dict.fromkeys(PACKAGES, "compilewatch.sources.libraries:PackageSource"),
    ALL: "compilewatch.sources.libraries:AllLibraries",
    "hub": "compilewatch.sources.hub.repositories:HubSource",
    "manifest": "compilewatch.sources.own:ManifestSource",
    "papers": "compilewatch.extras.papers.execution:PapersSource",
}


class Source(Protocol):
    """Makes model specs without importing torch. Raises SourceError or ConfigError.

    Those of `SOURCES` are made with the `Places` of a command, those of other packages without.
    """

    name: str

    def models(self) -> tuple[ModelSpec, ...]:
        """Return all models of this source, most used first, then by name; names are unique."""
        ...


def source_names() -> tuple[str, ...]:
    """Return the values of `--source` other than `auto`."""
    return plugins.names(SOURCES, group=ENTRY_POINTS)


def make_source(name: str, places: Places | None = None) -> Source:
    """Return the source called `name`. Raises UsageError for an unknown name."""
    known = ("auto", *source_names())
    implementation = plugins.find("source", SOURCES, name, group=ENTRY_POINTS, known=known)
    if name not in SOURCES:
        return cast(Source, implementation())
    if name in PACKAGES:
        implementation = partial(implementation, PACKAGES[name])
    return cast(Source, implementation(places or Places(settings=load_settings())))


def choose_source(name: str, places: Places) -> tuple[Source, str]:
    """Return the source called `name`, and a sentence that describes it.

    `auto` is the pulled list if it exists, otherwise the library.
    """
    if name == "auto":
        name = "hub" if places.pulled.exists() else "library"
    source = make_source(name, places)
    sentence = f"Models of the source {name}."
    if name == "library":
        from compilewatch.sources.transformers import transformers_version

        root = places.transformers
        which = (
            f"Transformers {transformers_version(root)}" if root else "the installed Transformers"
        )
        sentence = f"Models of {which} (`compilewatch pull` lists the Hub's)."
    elif name == "hub":
        from compilewatch.sources.hub.pulled import read_pulled

        pulled = read_pulled(places.pulled)
        cut = f", incomplete ({pulled.message})" if pulled.partial else ""
        sentence = f"Models of the Hub in {places.pulled}, pulled {pulled.pulled_at}{cut}."
    elif name == "manifest":
        sentence = f"Models of {places.settings.models_file}."
    elif name in extras.SANDBOXED:
        sentence = "Models of code that nobody has reviewed; each runs in a sandbox of its own."
    elif name == ALL:
        sentence = "Models of all libraries (`compilewatch list-sources` says which are missing)."
    elif name in PACKAGES:
        from compilewatch.sources.libraries import PackageSource

        assert isinstance(source, PackageSource)
        environment, version = source.installed()
        package = source.row.distribution
        sentence = f"Models of {package} {version} in the environment {environment}."
    return source, sentence


def other_sources(places: Places, chosen: str) -> tuple[Callable[[], Source], ...]:
    """Return the sources in which to look up a model that the chosen source did not select.

    The first is all of the chosen source, so that its models have precedence.
    """
    first = (chosen,) if chosen == "library" or chosen in PACKAGES else ()
    every = replace(places, settings=msgspec.structs.replace(places.settings, heads="all"))
    return tuple(
        partial(make_source, name, every) for name in (*first, "manifest", "hub", "library", ALL)
    )


def with_parts(names: Sequence[str] | None, places: Places) -> list[str] | None:
    """Return names with each pipeline replaced by the names of its models."""
    if names is None or not any(name.endswith(PIPELINE) for name in names):
        return list(names) if names is not None else None
    from compilewatch.sources.libraries import PackageSource

    pipelines: dict[str, tuple[str, ...]] = {}
    source = make_source("diffusers", places)
    assert isinstance(source, PackageSource)
    with contextlib.suppress(SourceError):
        pipelines = source.pipelines()
    return [part for name in names for part in pipelines.get(name.rpartition("/")[2], (name,))]
