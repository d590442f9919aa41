"""In which environment each target runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from compilewatch.contract.targets import default_environment, entry, fallback_environments
from compilewatch.environments import create_command
from compilewatch.errors import UsageError
from compilewatch.records import DEFAULT_ENVIRONMENT, Environment, Target


def wanted(targets: Iterable[str], named: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the environments in which these targets may run.

    These are the ones in `named`, otherwise the default and fallback environments of each target.
    `default` is a fallback because an agent can have the Neuron SDK next to compilewatch.
    """
    if named:
        return tuple(dict.fromkeys(named))
    found = [DEFAULT_ENVIRONMENT]
    for text in targets:
        target = text.partition(":")[0]
        found += [default_environment(target), *fallback_environments(target)]
    return tuple(dict.fromkeys(found))


def place(
    targets: Iterable[Target], named: Sequence[str], environments: Iterable[Environment]
) -> tuple[Target, ...]:
    """Return each target once for each environment in which it runs.

    Without `named`, this is the target's default environment, or another one that can run it if
    the default cannot. With `named`, it is each named environment that can run the target. A target
    that no environment can run stays in its default environment. Raises UsageError for a name that
    is not one of `environments`.
    """
    known = {environment.name: environment for environment in environments}
    for name in named:
        if name not in known:
            raise UsageError(
                f"no environment {name!r}; known: {', '.join(sorted(known))}; "
                f"{create_command(name)}"
            )
    return tuple(
        msgspec.structs.replace(target, environment=name)
        for target in targets
        for name in _places(target.name, named, known)
    )


def needs(target: Target) -> str:
    """Return why a target cannot run if its environment does not exist, and what to type."""
    return f"needs the environment {target.environment!r}: {create_command(target.environment)}"


def _places(target: str, named: Sequence[str], known: Mapping[str, Environment]) -> tuple[str, ...]:
    row = entry(target)
    if not row.packages:
        return tuple(named) or (row.environment,)
    for packages in (row.packages, row.fallback_packages):
        able = [
            name
            for name in named or dict.fromkeys((row.environment, *known))
            if name in known and set(packages) & known[name].packages.keys()
        ]
        if able:
            return tuple(able) if named else (able[0],)
    return (row.environment,)
