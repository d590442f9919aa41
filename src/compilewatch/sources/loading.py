"""Finding a source by its name, and the meaning of `auto`.

What reads a package of models or the pulled list is imported where such a source is chosen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from compilewatch import extras, plugins
from compilewatch.config import PULLED, Places, inputs_folder
from compilewatch.errors import SourceError
from compilewatch.sources import SOURCES, Source
from compilewatch.sources.libraries import ALL, LIBRARIES
from compilewatch.sources.transformers.scan import transformers_version

PIPELINE = "Pipeline"
"""The end of the names of pipelines, which consist of several models."""

ENTRY_POINTS = "compilewatch.sources"
"""The entry-point group in which other packages register sources, `name = "module:Class"`."""


def source_names() -> tuple[str, ...]:
    """Return the values of `--source` other than `auto`."""
    return plugins.names(SOURCES, group=ENTRY_POINTS)


def source_class(name: str) -> Callable[..., Source]:
    """Load the class of a source. Raises UsageError for an unknown name."""
    known = ("auto", *source_names())
    implementation = plugins.find("source", SOURCES, name, group=ENTRY_POINTS, known=known)
    return cast(Callable[..., Source], implementation)


def choose_source(
    name: str = "auto", *, heads: str = "default", places: Places | None = None
) -> tuple[Source, str]:
    """Return the source called `name`, and a sentence that describes it.

    `auto` is the pulled list if it exists, otherwise the library. `heads` only affects libraries.
    """
    places = places or Places()
    pulled = places.pulled or inputs_folder() / PULLED
    if name == "auto":
        name = "hub" if pulled.exists() else "library"
    source = _made(name, heads, places)
    if name == "library":
        hint = "(`compilewatch pull` lists the Hub's)."
        if places.transformers is None:
            return source, f"Models of the installed Transformers {hint}"
        version = transformers_version(places.transformers)
        return source, f"Models of Transformers {version} {hint}"
    if name == "hub":
        from compilewatch.sources.hub.pulled import read_pulled

        pulled_list = read_pulled(pulled)
        cut = f", incomplete ({pulled_list.message})" if pulled_list.partial else ""
        return source, f"Models of the Hub in {pulled}, pulled {pulled_list.pulled_at}{cut}."
    if name == "manifest":
        return source, f"Models of {getattr(source, 'path', places.manifest)}."
    if name in extras.SANDBOXED:
        return source, "Models of code that nobody has reviewed; each runs in a sandbox of its own."
    if name == ALL:
        return (
            source,
            "Models of all libraries (`compilewatch list-sources` says which are missing).",
        )
    if name in _LIBRARY_OF:
        return source, _library_sentence(_LIBRARY_OF[name], places)
    return source, f"Models of the source {name}."


def _library_sentence(library: str, places: Places) -> str:
    from compilewatch.sources.libraries.source import installed_package, library_version

    row = LIBRARIES[library]
    package, environment = _package(library, places) or installed_package(row, places.cache)
    version = library_version(package, row)
    return f"Models of {row.package} {version} in the environment {environment}."


def other_sources(places: Places, chosen: str) -> tuple[Callable[[], Source], ...]:
    """Return the sources in which to look up a model that the chosen source did not select.

    The first is all of the chosen source, so that its models have precedence.
    """
    first = (chosen,) if chosen in _LIBRARY_OF else ()
    names = (*first, "manifest", "hub", "library", ALL)
    return tuple(partial(_made, name, "all", places) for name in names)


def with_parts(names: Sequence[str] | None, places: Places) -> list[str] | None:
    """Return names with each pipeline replaced by the names of its models."""
    if names is None or not any(name.endswith(PIPELINE) for name in names):
        return list(names) if names is not None else None
    from compilewatch.sources.libraries.source import PackageSource

    pipelines: dict[str, tuple[str, ...]] = {}
    source = _made("diffusers", "all", places)
    assert isinstance(source, PackageSource)
    with contextlib.suppress(SourceError):
        pipelines = source.pipelines()
    return [part for name in names for part in pipelines.get(name.rpartition("/")[2], (name,))]


_LIBRARY_OF = {row.source: library for library, row in LIBRARIES.items()}


def _made(name: str, heads: str, places: Places) -> Source:
    root = places.transformers
    if name in _LIBRARY_OF:
        package = _package(_LIBRARY_OF[name], places)
        return source_class(name)(
            heads=heads,
            package=package[0] if package is not None else None,
            popularity=places.popularity if name == "library" else places.library_popularity,
            cache=places.cache,
        )
    arguments: dict[str, dict[str, Any]] = {
        "hub": {"path": places.pulled, "transformers": root},
        "manifest": {"path": places.manifest, "transformers": root},
        **{source: {"outputs": places.outputs} for source in extras.rows("sources")},
        ALL: {"makers": [partial(_made, source, heads, places) for source in _LIBRARY_OF]},
    }
    return source_class(name)(**arguments.get(name, {}))


def _package(library: str, places: Places) -> tuple[Path, str] | None:
    """The package of a library in the environment that a person named; None without one.

    Raises SourceError if that environment lacks it.
    """
    root = places.transformers
    if root is None:
        return None
    if library == "transformers":
        return root, ""
    from compilewatch.sources.libraries.source import package_in

    return package_in(root.parent, LIBRARIES[library], places.environment), places.environment
