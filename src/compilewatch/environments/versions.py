"""Environments by what is installed in them: found if there is one, created otherwise."""

from __future__ import annotations

import contextlib

from packaging.version import Version

from compilewatch.contract import targets
from compilewatch.environments import INTERPRETERS, Environments
from compilewatch.environments.creation import Observer, create
from compilewatch.environments.recipes import recipe_of
from compilewatch.errors import InterpreterError
from compilewatch.records import Environment


def release_of(version: str) -> str:
    """Return the release of a version: `2.15.0` of `2.15.0+cu132`."""
    return Version(version).public


def find(environments: Environments, torch: str, transformers: str) -> Environment | None:
    """Return a created environment with these releases.

    Neither compilewatch's own interpreter, which has further packages, nor those of targets, whose
    packages change what torch does, is one: two environments that are compared must be alike.
    """
    for name in environments.available():
        if name in INTERPRETERS or name in targets.environments():
            continue
        with contextlib.suppress(InterpreterError):
            environment = environments.describe(name)
            if (release_of(environment.torch), environment.transformers) == (torch, transformers):
                return environment
    return None


def ensure(
    environments: Environments,
    torch: str,
    transformers: str,
    observer: Observer = lambda _: None,
) -> Environment:
    """Return an environment with these releases, and create it if there is none.

    Raises UsageError for a release that does not exist, and InterpreterError.
    """
    environment = find(environments, torch, transformers)
    if environment is not None:
        return environment
    name = f"torch-{torch}-transformers-{transformers}"
    recipe = recipe_of(name, torch, transformers)
    return create(environments, name, recipe, observer=observer)[0]
