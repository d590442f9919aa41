"""The loader of all extension points: a table `name -> "module:Attribute"`, or an entry point."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from compilewatch.errors import UsageError, did_you_mean


def load(reference: str) -> Any:
    """Import the object that `"module:Attribute"` names. Raises ImportError or AttributeError."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def find(
    kind: str,
    table: Mapping[str, str],
    name: str,
    *,
    group: str | None = None,
    known: Iterable[str] | None = None,
) -> Any:
    """Return the class that a table, or an entry point of `group`, registers under a name.

    Raises UsageError for an unregistered name, listing those that are `known` (default: all), and
    for a class that cannot be loaded.
    """
    if name in table:
        return load(table[name])
    for found in entry_points(group=group, name=name) if group else ():
        try:
            return found.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{kind} {name} ({found.value}) cannot be loaded: {error}") from error
    known = names(table, group=group) if known is None else known
    raise UsageError(f"no {kind} {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")


def names(table: Mapping[str, str], *, group: str | None = None) -> tuple[str, ...]:
    """Return all registered names, sorted."""
    others = (found.name for found in entry_points(group=group)) if group else ()
    return tuple(sorted({*table, *others}))
