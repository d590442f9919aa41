"""Shell completion of models, runs and targets. If something fails, nothing is completed."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from compilewatch.errors import CompilewatchError

if TYPE_CHECKING:
    from compilewatch.store import Store

RUNS_READ = 3
"""How many of the newest runs are read for names of models."""


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """`latest`, and the ids of stored runs, newest first."""
    del ctx, param
    with contextlib.suppress(CompilewatchError):
        return _beginning(["latest", *(stored.run.id for stored in _store().runs())], incomplete)
    return []


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models of the stored runs, then those of the chosen source; files for a path."""
    del ctx, param
    before, last = _parts(incomplete)
    if last.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    names: list[str] = []
    with contextlib.suppress(CompilewatchError):
        for stored in _store().runs()[:RUNS_READ]:
            names += [result.request.model.name for result in stored.results()]
    with contextlib.suppress(CompilewatchError):
        names += contextvars.copy_context().run(_known_models)
    return [CompletionItem(before + name) for name in _beginning(names, last)]


def _known_models() -> list[str]:
    """The models of the chosen source, without asking a worker for them."""
    from compilewatch.api.choose import Selection, choose_models
    from compilewatch.config import load_settings
    from compilewatch.sources.libraries import KNOWN_ONLY

    KNOWN_ONLY.set(True)
    return [spec.name for spec in choose_models(load_settings(), Selection(every=True))[0]]


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Compile targets, with their own backends."""
    del ctx, param
    from compilewatch.contract.targets import TARGETS

    before, last = _parts(incomplete)
    names = list(TARGETS)
    names += [
        f"{name}:{backend}" for name, row in TARGETS.items() for backend in row.backends or ()
    ]
    return [before + name for name in _beginning(names, last)]


def _store() -> Store:
    from compilewatch.config import load_settings
    from compilewatch.store import Store

    return Store(Path(load_settings().output_dir))


def _parts(incomplete: str) -> tuple[str, str]:
    """The text before the last name of a list such as `A,B`, and that name."""
    before, comma, last = incomplete.rpartition(",")
    return before + comma, last


def _beginning(names: Iterable[str], text: str) -> list[str]:
    low = text.lower()
    return [name for name in dict.fromkeys(names) if name.lower().startswith(low)]
