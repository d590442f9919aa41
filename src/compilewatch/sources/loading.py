"""A source by its name, and which one `auto` means."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from compilewatch.errors import SourceError, UsageError
from compilewatch.sources import SOURCES, Source
from compilewatch.sources.pulled import pulled_path, read_pulled

ENTRY_POINTS = "compilewatch.sources"
"""The group in which other packages offer sources, `name = "module:Class"`."""


def source_names() -> tuple[str, ...]:
    """What `--source` accepts besides `auto`."""
    return tuple(sorted({*SOURCES, *(found.name for found in entry_points(group=ENTRY_POINTS))}))


def source_class(name: str) -> Callable[..., Source]:
    """Load one source's class. Raises UsageError for an unknown name."""
    if name in SOURCES:
        module, _, attribute = SOURCES[name].partition(":")
        return cast(Callable[..., Source], getattr(importlib.import_module(module), attribute))
    for found in entry_points(group=ENTRY_POINTS, name=name):
        try:
            return cast(Callable[..., Source], found.load())
        except (ImportError, AttributeError) as exc:
            raise SourceError(f"source {name} ({found.value}) cannot be loaded: {exc}") from exc
    raise UsageError(f"unknown source {name!r}: use auto, {', '.join(source_names())}")


def choose_source(
    name: str = "auto",
    *,
    heads: str = "default",
    pulled: Path | None = None,
    manifest: Path | None = None,
) -> tuple[Source, str]:
    """The source called `name`, and a sentence that says which it is.

    `auto` is the pulled list if there is one, else the library. `heads` concerns the library,
    `pulled` the Hub's list, `manifest` the team's.
    """
    if name == "auto":
        name = "hub" if (pulled or pulled_path()).exists() else "library"
    if name == "library":
        source = source_class(name)(heads=heads)
        return source, "Models of the installed Transformers (`compilewatch pull` lists the Hub's)."
    if name == "hub":
        path = pulled or pulled_path()
        found = read_pulled(path)
        cut = f", cut short ({found.message})" if found.partial else ""
        sentence = f"Models of the Hub in {path}, pulled {found.pulled_at}{cut}."
        return source_class(name)(path=path), sentence
    if name == "manifest":
        source = source_class(name)(path=manifest)
        return source, f"Models of {getattr(source, 'path', manifest)}."
    return source_class(name)(), f"Models of the source {name}."


def other_sources() -> tuple[Callable[[], Source], ...]:
    """Where a model that the chosen source does not know may be found by name, nearest first."""
    return (
        lambda: source_class("manifest")(),
        lambda: source_class("hub")(),
        lambda: source_class("library")(heads="all"),
        lambda: source_class("chaos")(),
    )
