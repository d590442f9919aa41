"""The loader of all extension points: a table `name -> "module:Attribute"`, or an entry point."""

import importlib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from compilewatch import extras
from compilewatch.errors import MissingExtraError, UsageError, did_you_mean


def load(reference: str, command: str = "") -> Any:
    """Import the object that `"module:Attribute"` names.

    `command` is the command that needs it, as it is typed after `compilewatch`. Raises
    MissingExtraError if it needs an extra that is not installed, ImportError or AttributeError.
    """
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise missing(error, command) or error from None


def missing(error: ModuleNotFoundError, command: str = "") -> MissingExtraError | None:
    """Return the error that says what to install, or None if no extra has the module.

    `command` is the command that needs it, as it is typed after `compilewatch`.
    """
    module = (error.name or "").partition(".")[0]
    extra = extras.extra_with(module, command)
    if extra is None:
        return None
    return MissingExtraError(
        f"{module} is not installed, which {command or 'this'} needs: {extras.install(extra)}"
    )


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
    for entry in entry_points(group=group, name=name) if group else ():
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{kind} {name} ({entry.value}) cannot be loaded: {error}") from error
    known = names(table, group=group) if known is None else known
    raise UsageError(f"no {kind} {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")


def names(table: Mapping[str, str], *, group: str | None = None) -> tuple[str, ...]:
    """Return all registered names, sorted."""
    others = (entry.name for entry in entry_points(group=group)) if group else ()
    return tuple(sorted({*table, *others}))
