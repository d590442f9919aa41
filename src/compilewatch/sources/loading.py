"""Finding a source by its name, and the meaning of `auto`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from compilewatch import plugins
from compilewatch.config.paths import Places
from compilewatch.sources import SOURCES, Source
from compilewatch.sources.hub.pulled import pulled_path, read_pulled
from compilewatch.sources.transformers.scan import transformers_version

ENTRY_POINTS = "compilewatch.sources"
"""The entry-point group in which other packages register sources, `name = "module:Class"`."""


def source_names() -> tuple[str, ...]:
    """Return the values of `--source` other than `auto`, without those that only tests use."""
    return tuple(n for n in plugins.names(SOURCES, group=ENTRY_POINTS) if n != "chaos")


def source_class(name: str) -> Callable[..., Source]:
    """Load the class of a source. Raises UsageError for an unknown name."""
    known = ("auto", *source_names())
    found = plugins.find("source", SOURCES, name, group=ENTRY_POINTS, known=known)
    return cast(Callable[..., Source], found)


def choose_source(
    name: str = "auto", *, heads: str = "default", places: Places | None = None
) -> tuple[Source, str]:
    """Return the source called `name`, and a sentence that describes it.

    `auto` is the pulled list if it exists, otherwise the library. `heads` only affects the library.
    """
    places = places or Places()
    pulled = places.pulled or pulled_path()
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
        found = read_pulled(pulled)
        cut = f", incomplete ({found.message})" if found.partial else ""
        return source, f"Models of the Hub in {pulled}, pulled {found.pulled_at}{cut}."
    if name == "manifest":
        return source, f"Models of {getattr(source, 'path', places.manifest)}."
    if name == "papers":
        return source, "Models that were generated from papers; each runs in a sandbox of its own."
    return source, f"Models of the source {name}."


def other_sources(places: Places | None = None) -> tuple[Callable[[], Source], ...]:
    """Return the sources in which to look up a model that the chosen source does not have."""
    known = places or Places()
    names = ("manifest", "hub", "library", "chaos")
    return tuple(partial(_made, name, "all", known) for name in names)


def _made(name: str, heads: str, places: Places) -> Source:
    root = places.transformers
    arguments: dict[str, dict[str, Any]] = {
        "library": {
            "heads": heads,
            "transformers": root,
            "popularity": places.popularity,
            "cache": places.cache,
        },
        "hub": {"path": places.pulled, "transformers": root},
        "manifest": {"path": places.manifest, "transformers": root},
        "papers": {"outputs": places.outputs},
    }
    return source_class(name)(**arguments.get(name, {}))
